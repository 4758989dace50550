// An upload of a file on the page "Fine-tune": the button, how far it is, and why it has failed.
"use strict";

window.TuneserveFileUpload = class {
  static REFUSALS = {
    403: "This key may not upload files.",
    413: "This file is larger than the page accepts.",
    507: "Too many uploads are queued for import; try again later.",
  };

  // `add` gets the path of a file that was uploaded; `end` is called when it was added.
  constructor(root, add) {
    Object.assign(this, { root, add, place: root.querySelector("#upload-progress") });
    this.button = root.querySelector("#upload-button");
    const input = root.querySelector("#upload-file");
    this.button.addEventListener("click", () => input.click());
    this.find("button").addEventListener("click", () => this.request.abort());
    input.addEventListener("change", () => {
      if (input.files[0]) this.send(input.files[0]);
      input.value = ""; // so that the same file can be chosen again
    });
  }

  find(selector) {
    return this.place.querySelector(selector);
  }

  send(file) {
    this.request = new XMLHttpRequest(); // `fetch` does not report progress
    const { request } = this;
    const body = new FormData();
    const text = `Uploading ${file.name}`;
    this.name = file.name;
    body.append("files", file);
    request.open("POST", "./gradio_api/upload");
    request.responseType = "json";
    this.show(text, 0);
    request.upload.addEventListener("progress", ({ loaded, total }) => this.show(text, loaded / total));
    request.addEventListener("load", () => this.finish(request));
    request.addEventListener("error", () => this.fail("The upload was interrupted: try again."));
    request.addEventListener("abort", () => this.end({}));
    request.send(body);
  }

  finish({ status, response }) {
    const path = Array.isArray(response) ? response[0] : "";
    if (status !== 200 || !path) {
      this.fail(this.constructor.REFUSALS[status] ?? `The upload failed with status ${status}.`);
      return;
    }
    this.show("Adding the file…");
    this.add(path);
  }

  // Without a share, nobody knows how long it takes.
  show(text, share) {
    const bar = this.find("progress");
    this.place.hidden = false;
    this.place.classList.remove("ts-failed");
    bar.hidden = false;
    if (share === undefined) bar.removeAttribute("value");
    else bar.value = share;
    tuneserveSetText(this.find("span"), text); // page.js
    this.find("button").hidden = share === undefined;
    this.button.disabled = true;
  }

  fail(reason) {
    this.show(reason);
    this.place.classList.add("ts-failed");
    this.find("progress").hidden = true;
    this.button.disabled = false;
  }

  // No outcome: the server did not answer.
  end(outcome) {
    this.place.hidden = true;
    this.button.disabled = false;
    if (!outcome) this.fail("The upload was interrupted: try again.");
  }
};
