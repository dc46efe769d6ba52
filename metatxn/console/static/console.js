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

  // A form is sent without leaving its page: if it is refused, what was typed stays, and the reason is shown in it.
  // What is sent without scripts, or again and again with the live part of a page, gets a page as its answer.
  const SENT = "main form[method=post]:not([action$='/sign-in']), main form[data-asks]";
  const NO_ANSWER = "The coordinator does not answer. Whether it has done this is not known: look before you send it again.";

  function refuse(form, alert) {
    form.querySelector(":scope > [role=alert]")?.remove();
    form.prepend(alert);
    const field = alert.dataset.field ? form.elements.namedItem(alert.dataset.field) : null;
    if (field instanceof HTMLElement) {
      field.setAttribute("aria-invalid", "true");
      field.focus();
    }
    alert.scrollIntoView({ block: "nearest" });
  }

  function alertOf(answer) {
    const page = new DOMParser().parseFromString(answer, "text/html");
    const found = page.querySelector("[role=alert]");
    if (found) {
      return document.adoptNode(found);
    }
    const alert = document.createElement("div");
    alert.className = "problem";
    alert.setAttribute("role", "alert");
    alert.textContent = (page.querySelector("main") ?? page.body).innerText.trim().slice(0, 300);
    return alert;
  }

  async function send(form, submitter) {
    const data = new URLSearchParams(new FormData(form, submitter));
    const asks = form.method === "get";
    const url = asks ? `${form.action}?${data}` : submitter?.hasAttribute("formaction") ? submitter.formAction : form.action;
    for (const field of form.querySelectorAll("[aria-invalid]")) {
      field.removeAttribute("aria-invalid");
    }
    submitter?.setAttribute("aria-busy", "true");
    try {
      const headers = { "metatxn-form": "1" };
      const answer = await fetch(url, { method: form.method, headers, ...(asks ? {} : { body: data }) });
      if (answer.redirected) {
        location.reload(); // the token is not accepted any more
      } else if (answer.ok) {
        location.assign(answer.headers.get("metatxn-go") ?? url);
      } else {
        refuse(form, alertOf(await answer.text()));
      }
    } catch {
      refuse(form, alertOf(NO_ANSWER));
    } finally {
      submitter?.removeAttribute("aria-busy");
    }
  }

  document.addEventListener("submit", (submit) => {
    const form = submit.target;
    if (form.matches(SENT) && !form.closest("[hx-sse\\:connect]")) {
      submit.preventDefault();
      if (submit.submitter?.getAttribute("aria-busy") !== "true") {
        send(form, submit.submitter);
      }
    }
  });

  // Times are typed and shown in the reader's zone; the address of a page has them in UTC.
  const WITHOUT_ZONE = /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?$/;
  const WITH_ZONE = /^\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:\d\d)$/;

  document.addEventListener("formdata", (sent) => {
    for (const field of sent.target.querySelectorAll("[data-zone]")) {
      const text = field.value.trim();
      if (WITHOUT_ZONE.test(text)) {
        const at = new Date(text.length > 10 ? text.replace(" ", "T") : `${text}T00:00`);
        sent.formData.set(field.name, Number.isNaN(at.getTime()) ? text : at.toISOString());
      }
    }
  });

  function showZones() {
    for (const field of document.querySelectorAll("[data-zone]")) {
      const at = new Date(field.value);
      if (WITH_ZONE.test(field.value) && !Number.isNaN(at.getTime())) {
        const local = new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString();
        field.value = local.slice(0, 23).replace("T", " ").replace(/(:00)?\.000$/, "");
      }
    }
  }

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
  showZones();
})();
