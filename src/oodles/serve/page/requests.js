// Everything that is asked of the service: the token, waiting when it is busy, and pictures in requests it accepts.
"use strict";

const TOKEN = "oodles-token";
const MAX_WAIT = 30; // seconds
const ATTEMPTS = 8;
const AT_ONCE = 2; // requests
const PART_BYTES = 1024; // what multipart adds to a picture at most, beside its name

/** An answer other than 200, in the service's words. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/**
 * Ask the service and return the JSON of its answer. Asks for the token and waits for a busy service as needed, unless
 * it happens in the background, where neither is worth a disturbance.
 */
async function ask(path, { background = false, onWait = () => {}, ...options } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    const token = sessionStorage.getItem(TOKEN);
    const response = await send(path, options, token);
    if (response.status === 401 && !background) {
      await currentToken(token);
    } else if (response.status === 503 && !background && attempt < ATTEMPTS) {
      const seconds = Math.min(MAX_WAIT, Math.max(1, Number(response.headers.get("Retry-After")) || 1));
      onWait(seconds);
      await pause(seconds);
    } else {
      const answer = await response.json().catch(() => null);
      if (response.ok && answer !== null) return answer;
      throw new Refused(response.status, answer?.error ?? `the service answered with status ${response.status}`);
    }
  }
}

async function send(path, options, token) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    return await fetch(path, { ...options, headers, cache: "no-store" });
  } catch {
    throw new Refused(0, "the service did not answer; check that it is still running and try again");
  }
}

// The token --------------------------------------------------------------------------------------

let asking = null; // one dialog for all requests that wait for it

/** Resolve as soon as there is a token other than the one that was refused; ask for it if need be. */
function currentToken(refused) {
  const known = sessionStorage.getItem(TOKEN);
  if (known !== null && known !== refused) return Promise.resolve();
  asking ??= askForToken(refused !== null).finally(() => (asking = null));
  return asking;
}

function askForToken(wasWrong) {
  const dialog = byId("ask");
  const problem = byId("ask-problem");
  problem.hidden = !wasWrong;
  problem.textContent = wasWrong ? "The service did not accept that token." : "";
  byId("token").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve, reject) => {
    const closed = () => {
      const given = byId("token").value.trim();
      byId("token").value = "";
      if (dialog.returnValue === "given" && given) {
        sessionStorage.setItem(TOKEN, given);
        resolve();
      } else {
        sessionStorage.removeItem(TOKEN);
        reject(new Refused(401, "the service asks for a token, and none was given"));
      }
    };
    dialog.addEventListener("close", closed, { once: true });
  });
}

// Pictures ---------------------------------------------------------------------------------------

/** Divide entries into groups that the service takes in one request; each entry has a `file` that fits by itself. */
function grouped(entries, limits) {
  const groups = [];
  let room = 0;
  for (const entry of entries) {
    const size = sizeInRequest(entry.file);
    if (!groups.length || groups.at(-1).length >= limits.images || size > room) {
      groups.push([]);
      room = limits.body_bytes - PART_BYTES;
    }
    groups.at(-1).push(entry);
    room -= size;
  }
  return groups;
}

function sizeInRequest(file) {
  return file.size + PART_BYTES + 3 * file.name.length;
}

const fits = (file, limits) => sizeInRequest(file) <= limits.body_bytes - PART_BYTES;

/**
 * Have pictures scored, a few requests at a time; `done(entry, result)` and `failed(entry, message)` are called
 * once per picture, `answered(answer)` once per request.
 */
async function scorePictures(entries, guard, limits, { done, failed, answered, onWait }) {
  const waiting = grouped(entries, limits);
  const work = async () => {
    for (let group = waiting.shift(); group; group = waiting.shift()) {
      try {
        const form = new FormData();
        for (const { file } of group) form.append("file", file, file.name);
        const answer = await ask(scorePath(guard), { method: "POST", body: form, onWait });
        if (answer.results.length !== group.length) throw new Refused(200, "the service lost some of the pictures");
        group.forEach((entry, index) => done(entry, answer.results[index]));
        answered(answer);
      } catch (error) {
        for (const entry of group) failed(entry, error.message);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

function scoreWritten(text, guard) {
  const headers = { "Content-Type": "application/json" };
  return ask(scorePath(guard), { method: "POST", body: text, headers });
}

const scorePath = ({ name }) => `score?guard=${encodeURIComponent(name)}&explain=1`;

function saveThreshold(guard, value) {
  const headers = { "Content-Type": "application/json" };
  return ask(`guards/${encodeURIComponent(guard)}/threshold`, { method: "PUT", body: JSON.stringify({ value }), headers });
}
