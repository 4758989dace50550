// The page "Cluster": its frame shows the HTML of the document at first, and later what Gradio gets.
"use strict";

tuneserveFrames.define("cluster-view", (frame, channel, html) => {
  frame.innerHTML = html;
});
