// Requests of a page, each with an answer of its own (frames.js has the channel).
"use strict";

// Requests of one kind, one at a time. Of those that are made meanwhile the newest is sent, or each
// if all count. A request without an answer counts as answered after a minute; an action, such as adding a
// large file, after half an hour.
window.TuneserveRequests = class {
  static PATIENCE_MS = 60_000;
  static ACTION_PATIENCE_MS = 1_800_000;

  constructor(channel, event, receive, { allCount = false } = {}) {
    Object.assign(this, { channel, event, receive, allCount, waiting: [], serial: 0, isBusy: false });
    this.patience = allCount ? this.constructor.ACTION_PATIENCE_MS : this.constructor.PATIENCE_MS;
    channel.whenOpen(() => this.next());
  }

  get isIdle() {
    return !this.isBusy && !this.waiting.length;
  }

  ask(describe) {
    this.waiting = this.allCount ? [...this.waiting, describe] : [describe];
    this.next();
  }

  next() {
    if (!this.channel.isOpen || this.isBusy || !this.waiting.length) return;
    const asked = this.waiting.shift()();
    this.isBusy = true;
    this.serial += 1;
    this.timer = setTimeout(() => this.end(null), this.patience);
    this.asked = asked;
    this.channel.send(this.event, { ...asked, serial: this.serial });
  }

  answer(message) {
    if (this.isBusy && message?.serial === this.serial) this.end(message);
  }

  // What was answered is outdated if a newer request waits.
  end(message) {
    const { asked } = this;
    clearTimeout(this.timer);
    this.isBusy = false;
    const isOutdated = !this.allCount && this.waiting.length > 0;
    this.next();
    if (!isOutdated) this.receive(message, asked);
  }
};
