// What the scores of the calibration set say about a threshold; pure functions of a guard's record.
"use strict";

/**
 * Points [score, share of ID scores below it], in order of both. The histogram is exact at its edges, the quantiles
 * are exact where they are; between points the share is interpolated.
 */
function belowPoints(calibration, size) {
  const total = calibration.counts.reduce((sum, count) => sum + count, 0);
  const points = [];
  let below = 0;
  calibration.edges.forEach((edge, index) => {
    points.push([edge, below / total]);
    below += calibration.counts[index] ?? 0;
  });
  const last = calibration.quantiles.length - 1;
  calibration.quantiles.forEach((score, index) => points.push([score, ((index / last) * (size - 1)) / size]));
  points.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let highest = 0;
  for (const point of points) point[1] = highest = Math.max(highest, point[1]);
  return points;
}

/** The share of ID inputs whose score is at least `threshold`, or null if the guard has no calibration scores. */
function keptShare(guard, threshold) {
  if (!guard.calibration) return null;
  const points = belowPoints(guard.calibration, guard.threshold.calibration_size);
  const next = points.findIndex(([score]) => score >= threshold);
  if (next === -1) return 0;
  const [score, below] = points[next];
  if (next === 0 || score === threshold) return 1 - below;
  const [from, before] = points[next - 1];
  return 1 - (before + ((threshold - from) / (score - from)) * (below - before));
}

/** The threshold that keeps this share of the ID inputs. */
function thresholdKeeping(guard, share) {
  const quantiles = guard.calibration.quantiles;
  const place = (1 - share) * (quantiles.length - 1);
  const first = Math.floor(place + 1e-9);
  const next = Math.min(first + 1, quantiles.length - 1);
  return quantiles[first] + Math.max(0, place - first) * (quantiles[next] - quantiles[first]);
}

/**
 * The scores that the chart shows: those of the calibration set, the thresholds and the inputs, but inputs that are
 * far away do not squeeze everything else: they are drawn at the edge.
 */
function scoreRange(guard, scores, draft) {
  const thresholds = [guard.threshold.value, draft];
  const own = guard.calibration ? [guard.calibration.edges[0], guard.calibration.edges.at(-1)] : [...thresholds, ...scores];
  let [low, high] = [Math.min(...own), Math.max(...own)];
  if (low === high) [low, high] = [low - 1, high + 1];
  const width = high - low;
  const near = scores.filter((score) => score >= low - 0.6 * width && score <= high + 0.4 * width);
  low = Math.min(low, ...near, ...thresholds);
  high = Math.max(high, ...near, ...thresholds);
  const margin = 0.04 * (high - low);
  return [low - margin, high + margin];
}
