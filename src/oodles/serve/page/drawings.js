// Sample pictures, drawn by code: no image file is shipped, and every browser makes nearly the same pixels.
"use strict";

const DRAWING_SIDE = 256;

const DRAWINGS = { car: drawCar, ship: drawShip, plane: drawPlane, truck: drawTruck, digit: drawDigit, stripes: drawStripes, dots: drawDots, noise: drawNoise };

/** A canvas with a drawing; the drawings use coordinates from 0 to 100. */
function drawing(name) {
  const canvas = make("canvas", { width: DRAWING_SIDE, height: DRAWING_SIDE });
  const pen = canvas.getContext("2d");
  pen.scale(DRAWING_SIDE / 100, DRAWING_SIDE / 100);
  pen.lineCap = pen.lineJoin = "round";
  DRAWINGS[name](pen);
  return canvas;
}

function drawingAsFile(name) {
  return new Promise((resolve) => {
    drawing(name).toBlob((blob) => resolve(new File([blob], `${name} (drawing).png`, { type: "image/png" })), "image/png");
  });
}

/** Fill the list of drawings with buttons; `use` is given the file of the one that is pressed. */
function offerDrawings(list, use) {
  for (const name of Object.keys(DRAWINGS)) {
    const canvas = drawing(name);
    canvas.setAttribute("aria-hidden", "true");
    const button = make("button", { type: "button", className: "drawing" }, canvas, make("span", {}, name));
    button.addEventListener("click", async () => use([await drawingAsFile(name)]));
    list.append(make("li", {}, button));
  }
}

// Shapes -----------------------------------------------------------------------------------------

function polygon(pen, colour, ...points) {
  pen.fillStyle = colour;
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.closePath();
  pen.fill();
}

function ellipse(pen, colour, x, y, width, height = width, turn = 0) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.ellipse(x, y, width, height, turn, 0, 2 * Math.PI);
  pen.fill();
}

function line(pen, colour, width, ...points) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.stroke();
}

function backdrop(pen, above, below, horizon) {
  const sky = pen.createLinearGradient(0, 0, 0, horizon);
  sky.addColorStop(0, above[0]);
  sky.addColorStop(1, above[1]);
  pen.fillStyle = sky;
  pen.fillRect(0, 0, 100, horizon);
  const ground = pen.createLinearGradient(0, horizon, 0, 100);
  ground.addColorStop(0, below[0]);
  ground.addColorStop(1, below[1]);
  pen.fillStyle = ground;
  pen.fillRect(0, horizon, 100, 100 - horizon);
}

// Drawings ---------------------------------------------------------------------------------------

function drawCar(pen) {
  backdrop(pen, ["#b9d3e6", "#e6eef2"], ["#8c8f92", "#5d6063"], 62);
  ellipse(pen, "rgba(0, 0, 0, 0.35)", 50, 81, 42, 4);
  polygon(pen, "#b3201f", [7, 58], [20, 53], [31, 37], [64, 37], [78, 53], [93, 58], [94, 76], [6, 76]);
  polygon(pen, "#d8332f", [7, 58], [20, 53], [78, 53], [93, 58], [93, 63], [7, 63]);
  polygon(pen, "#bcd5e0", [25, 53], [34, 41], [47, 41], [47, 53]);
  polygon(pen, "#bcd5e0", [51, 53], [51, 41], [62, 41], [72, 53]);
  ellipse(pen, "#ffe9a8", 91, 62, 2.5, 3);
  for (const x of [26, 74]) {
    ellipse(pen, "#17181a", x, 76, 9.5);
    ellipse(pen, "#b9bec3", x, 76, 4.5);
  }
}

function drawShip(pen) {
  backdrop(pen, ["#7fb2dc", "#d6e8f3"], ["#2c6d92", "#123f5c"], 60);
  polygon(pen, "#f2f2ee", [30, 54], [30, 44], [70, 44], [74, 54]);
  polygon(pen, "#f8f8f5", [37, 44], [37, 36], [60, 36], [62, 44]);
  polygon(pen, "#d2442c", [42, 36], [43, 23], [51, 23], [52, 36]);
  polygon(pen, "#1b1d22", [43, 26], [43, 23], [51, 23], [51, 26]);
  for (const x of [36, 44, 52, 60]) ellipse(pen, "#35586f", x, 49, 1.8);
  polygon(pen, "#27323e", [8, 54], [94, 54], [84, 71], [18, 71]);
  polygon(pen, "#a3322a", [15, 66], [87, 66], [84, 71], [18, 71]);
  for (const [x, y] of [[6, 72], [34, 74], [66, 73], [20, 85], [60, 88]]) line(pen, "#9cc6dd", 1.4, [x, y], [x + 8, y - 1.2], [x + 17, y]);
}

function drawPlane(pen) {
  backdrop(pen, ["#4f92cf", "#bddcf2"], ["#bddcf2", "#dceef8"], 90);
  for (const [x, y, size] of [[20, 78, 13], [34, 80, 9], [82, 24, 10], [72, 26, 7]]) ellipse(pen, "rgba(255, 255, 255, 0.75)", x, y, size, size / 2.6);
  polygon(pen, "#c9d2da", [44, 46], [60, 46], [46, 20], [37, 18]);
  ellipse(pen, "#eef2f5", 50, 50, 40, 7.5, -0.06);
  polygon(pen, "#27598f", [12, 52], [6, 30], [15, 30], [26, 48]);
  polygon(pen, "#b3bec8", [42, 54], [60, 53], [44, 84], [34, 85]);
  ellipse(pen, "#8793a0", 44, 68, 5.5, 2.4);
  for (let x = 32; x < 80; x += 6) ellipse(pen, "#3a4f66", x, 49.5 - (x - 50) * 0.06, 1.2);
  polygon(pen, "#2b3d52", [82, 44], [87, 45], [87, 47.5], [80, 48]);
}

function drawTruck(pen) {
  backdrop(pen, ["#a9c8e0", "#e3ecf2"], ["#85888b", "#56595c"], 66);
  ellipse(pen, "rgba(0, 0, 0, 0.35)", 50, 85, 45, 4);
  polygon(pen, "#e8e6df", [5, 24], [62, 24], [62, 74], [5, 74]);
  polygon(pen, "#cfccc2", [5, 66], [62, 66], [62, 74], [5, 74]);
  polygon(pen, "#2f62a5", [64, 36], [82, 36], [93, 54], [95, 76], [64, 76]);
  polygon(pen, "#c2dae6", [69, 41], [80, 41], [87, 54], [69, 54]);
  ellipse(pen, "#ffe9a8", 93, 66, 2, 3);
  for (const x of [19, 46, 80]) {
    ellipse(pen, "#17181a", x, 79, 9);
    ellipse(pen, "#a9aeb3", x, 79, 4);
  }
}

function drawDigit(pen) {
  pen.fillStyle = "#f3efe2";
  pen.fillRect(0, 0, 100, 100);
  line(pen, "#17181a", 13, [30, 24], [70, 24], [50, 48], [66, 54], [70, 66], [62, 78], [44, 82], [28, 76]);
}

function drawStripes(pen) {
  pen.fillStyle = "#f2f2f2";
  pen.fillRect(0, 0, 100, 100);
  for (let x = -100; x < 100; x += 20) polygon(pen, "#1d1d1f", [x, 100], [x + 100, 0], [x + 110, 0], [x + 10, 100]);
}

function drawDots(pen) {
  pen.fillStyle = "#f3c846";
  pen.fillRect(0, 0, 100, 100);
  for (let y = 0; y < 6; y += 1) for (let x = 0; x < 6; x += 1) ellipse(pen, "#6a2a88", 10 + 20 * x - (y % 2) * 10, 10 + 20 * y, 6);
}

function drawNoise(pen) {
  const pixels = pen.createImageData(DRAWING_SIDE, DRAWING_SIDE);
  let seed = 1;
  for (let index = 0; index < pixels.data.length; index += 1) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    pixels.data[index] = index % 4 === 3 ? 255 : seed >>> 24;
  }
  pen.putImageData(pixels, 0, 0);
}
