// How inputs come in: pictures chosen, dropped or pasted, texts or JSON written; then they are scored and shown.
"use strict";

const THUMBNAIL_SIDE = 256;
const TINY = 64; // pixels are shown as squares up to this size

const sending = { total: 0, done: 0, last: Promise.resolve() };

/** Score files with the guard that is shown; drops during a run wait for their turn. */
function takeFiles(files) {
  if (!state.guard || state.guard.takes !== "images" || !files.length) return;
  const { limits, guard } = state;
  const items = files.map((file) => ({ guard: guard.name, name: file.name, file, thumbnail: null, result: null, problem: null }));
  for (const item of items) {
    if (item.file.size === 0) item.problem = "the file is empty";
    else if (!fits(item.file, limits)) item.problem = `it has ${bytes(item.file.size)}, and the service takes at most ${bytes(limits.body_bytes)}; choose a smaller picture`;
    addItem(item);
  }
  const before = state.selected;
  if (items.length === 1) state.selected = items[0];
  openCheck();
  sending.total += items.length;
  sending.last = sending.last.then(() => scoreItems(items, guard, limits, before));
  showEverything();
  thumbnails(items.filter((item) => !item.problem));
}

async function scoreItems(items, guard, limits, before) {
  const finish = () => {
    sending.done += 1;
    showSoon();
  };
  items.filter((item) => item.problem).forEach(finish);
  showSending("");
  await scorePictures(items.filter((item) => !item.problem), guard, limits, {
    done: (item, result) => {
      item.result = result;
      finish();
    },
    failed: (item, message) => {
      item.problem = message;
      finish();
    },
    answered: noticeThreshold,
    onWait: (seconds) => showSending(`the service is busy, trying again in ${counted(seconds, "second")}`),
  });
  finished(items, before);
}

/** Select the input that stands out unless another was chosen meanwhile, and say what came out. */
function finished(items, before) {
  if (items.length > 1 && state.selected === before) {
    const scored = items.filter((item) => isScored(item) && !item.forgotten);
    state.selected = scored.sort((one, other) => sortKey(one) - sortKey(other))[0] ?? items.find((item) => !item.forgotten) ?? null;
  }
  if (sending.done >= sending.total) sending.total = sending.done = 0;
  showEverything();
  announce(items.length === 1 ? verdictWords(items[0]) : summary(items));
  watch();
}

function summary(items) {
  const scored = items.filter(isScored);
  const accepted = scored.filter((item) => item.result.is_id).length;
  const failed = items.length - scored.length;
  return `${counted(items.length, "input")}: ${whole(accepted)} accepted, ${whole(scored.length - accepted)} rejected${failed ? `, ${whole(failed)} could not be scored` : ""}.`;
}

/** The threshold may have been changed by somebody else; then the guard's record is asked for again. */
function noticeThreshold(answer) {
  const known = state.guards.find((guard) => guard.name === answer.guard);
  if (known && known.threshold.value !== answer.threshold) loadGuards();
}

function showSending(note) {
  byId("sending").hidden = !sending.total;
  if (!sending.total) return;
  byId("sending-label").textContent = `${whole(sending.done)} of ${whole(sending.total)} scored${note ? `; ${note}` : ""}`;
  byId("sending-bar").value = sending.done / sending.total;
}

// Thumbnails -------------------------------------------------------------------------------------

/** Small copies of pictures, one at a time; they stay in this page. */
async function thumbnails(items) {
  for (const item of items) {
    const made = await thumbnail(item.file);
    if (made && item.forgotten) URL.revokeObjectURL(made.url);
    else if (made) {
      item.thumbnail = made;
      updatePicture(item);
    }
  }
}

async function thumbnail(file) {
  const source = URL.createObjectURL(file);
  try {
    const image = make("img", { src: source });
    await image.decode();
    const longest = Math.max(image.naturalWidth, image.naturalHeight);
    const factor = Math.min(1, THUMBNAIL_SIDE / longest);
    const canvas = make("canvas", { width: Math.max(1, Math.round(factor * image.naturalWidth)), height: Math.max(1, Math.round(factor * image.naturalHeight)) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/webp", 0.9));
    return blob && { url: URL.createObjectURL(blob), tiny: longest <= TINY };
  } catch {
    return null; // not a picture that this browser can show
  } finally {
    URL.revokeObjectURL(source);
  }
}

// Choosing, dropping, pasting --------------------------------------------------------------------

function prepareIntake() {
  const input = byId("files");
  input.addEventListener("change", () => {
    takeFiles([...input.files]);
    input.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) takeFiles(files);
  });
  const isOver = (over) => document.body.classList.toggle("dropping", over && state.guard?.takes === "images");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    isOver(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && isOver(false));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    isOver(false);
    takeFiles(droppedFiles(event.dataTransfer));
  });
  byId("written").addEventListener("submit", (event) => {
    event.preventDefault();
    takeWritten(byId("rows").value);
  });
  offerDrawings(byId("drawings"), takeFiles);
}

/** The files of a drop; folders cannot be read as files and are left out. */
function droppedFiles(transfer) {
  const folders = new Set([...transfer.items].map((each) => each.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory).map((entry) => entry.name));
  showProblem(folders.size ? `Folders cannot be dropped (${[...folders].join(", ")}); drop or choose the pictures in them.` : "");
  return [...transfer.files].filter((file) => !folders.has(file.name));
}

// Texts and arrays -------------------------------------------------------------------------------

/** Score what was written: one text per line if the guard takes texts, else its inputs as JSON. */
async function takeWritten(written) {
  const { guard } = state;
  const isText = guard.texts;
  const texts = isText ? written.split("\n").map((line) => line.trim()).filter(Boolean) : null;
  showProblem("");
  try {
    const body = isText ? { texts } : JSON.parse(written);
    const answer = await scoreWritten(JSON.stringify(body), guard);
    const items = answer.results.map((result, index) => ({ guard: guard.name, name: texts?.[index] ?? `row ${index + 1}`, file: null, thumbnail: null, result, problem: null }));
    items.forEach(addItem);
    state.selected = items[0];
    noticeThreshold(answer);
    finished(items, null);
  } catch (error) {
    showProblem(error instanceof SyntaxError ? `The inputs are not valid JSON: ${error.message}` : error.message);
  }
}

/** A body with the names and shapes that the guard takes, if it is short enough to be written by hand. */
function exampleRows(inputs) {
  const filled = (shape) => (shape.length ? Array.from({ length: shape[0] ?? 4 }, () => filled(shape.slice(1))) : 0);
  const sizes = inputs.map(({ shape }) => shape.slice(1).reduce((product, size) => product * (size ?? 4), 1));
  if (sizes.some((size) => size > 2000)) return "";
  const rows = Object.fromEntries(inputs.map(({ name, shape }) => [name, [filled(shape.slice(1))]]));
  return JSON.stringify({ inputs: rows });
}

const inputWords = ({ name, dtype, shape }) => `${name}: ${dtype} (${shape.map((size) => size ?? "any").join(", ")})`;
