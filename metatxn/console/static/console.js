// What a page needs beyond HTML: times in the reader's zone, news of a lost connection, and some keys.
"use strict";

(() => {
  const AGAIN_MS = 2000;
  const SILENT_MS = 25_000;
  const LOOK_MS = 1000;
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const today = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

  function showTimes(root) {
    const day = new Date().toDateString();
    for (const each of root.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      if (!Number.isNaN(at.getTime())) {
        each.textContent = (at.toDateString() === day ? today : exact).format(at);
      }
    }
  }

  let heard = performance.now();
  let stream = null;

  function connection(lost) {
    const said = document.getElementById("lost");
    if (said && said.hidden === lost) {
      document.getElementById("lost-at").textContent = today.format(new Date(performance.timeOrigin + heard));
      said.hidden = !lost;
    }
  }

  // The extension connects again to what it was connected to. What fails the first time, htmx gives up.
  function askAgain(part) {
    connection(true);
    const url = part.getAttribute("hx-sse:connect") ?? part.getAttribute("hx-get");
    setTimeout(() => part.isConnected && htmx.ajax("GET", url, { source: part }), AGAIN_MS);
  }

  // Also while nothing changes, something is sent every ten seconds. A process that is frozen or cut off closes no
  // connection: what is not heard of for long is asked again.
  function hear(event) {
    heard = performance.now();
    stream = event.detail?.connection ?? stream;
    connection(false);
  }

  document.addEventListener("htmx:sse:after:connection", hear);
  document.addEventListener("htmx:sse:before:message", hear);
  document.addEventListener("visibilitychange", () => {
    heard = performance.now();
  });
  setInterval(() => {
    const follows = document.querySelector("[hx-sse\\:connect]") !== null && !document.hidden;
    if (follows && performance.now() - heard > SILENT_MS) {
      connection(true);
      stream?.reader?.cancel();
    }
  }, LOOK_MS);

  document.addEventListener("htmx:sse:error", () => connection(true));
  document.addEventListener("htmx:error", (failed) => failed.detail.ctx && askAgain(failed.detail.ctx.sourceElement));
  document.addEventListener("htmx:before:response", (answered) => {
    const { raw } = answered.detail.ctx.response;
    if (raw.redirected) {
      // Only to the page on which to sign in: the token is not accepted any more.
      answered.preventDefault();
      location.reload();
    } else if (!raw.ok) {
      answered.preventDefault();
      askAgain(answered.detail.ctx.sourceElement);
    }
  });
  document.addEventListener("htmx:after:swap", () => {
    connection(false);
    showTimes(document);
  });

  document.addEventListener("click", (click) => {
    const copied = click.target.closest("[data-copy]");
    if (copied) {
      navigator.clipboard.writeText(copied.dataset.copy).then(() => {
        copied.textContent = "Copied";
      });
    }
  });

  document.addEventListener("change", (change) => {
    const all = change.target.closest("[data-checks]");
    if (all) {
      for (const each of document.getElementsByName(all.dataset.checks)) {
        each.checked = all.checked;
      }
    }
  });

  document.addEventListener("keydown", (key) => {
    const search = document.querySelector("input[type=search]");
    if (key.key === "/" && search && !key.target.closest("input, textarea, select")) {
      key.preventDefault();
      search.focus();
    }
  });

  showTimes(document);
})();
