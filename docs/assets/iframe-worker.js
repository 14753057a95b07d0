/* Browsers start no workers for pages opened from a folder. There, a hidden frame of the same page does the work,
   so that the search needs no server. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const home = new URL(url, location.href);
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      const load = (path) =>
        new Promise((loaded, failed) => {
          const script = inner.document.createElement("script");
          script.src = new URL(path, home).href;
          script.onload = loaded;
          script.onerror = () => failed(new Error(path));
          inner.document.head.appendChild(script);
        });
      inner.importScripts = (...paths) => paths.reduce((before, path) => before.then(() => load(path)), Promise.resolve());
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      load(home.href).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
