/** Draws the heat map with one pixel per cell and scales the image up. */
import { parseColor, toPixel, scaleStep } from "./colorScale";
import { BAD, type Grid } from "./heatMapData";

export interface HeatMapStyle {
  scale: Uint32Array;
  bad: string;
  ink: string;
  font: string;
}

/** The cells' area on the canvas (CSS px). */
export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Diverged cells get a cross if cells are at least this large (px). */
const CROSS_MIN = 7;

export function drawHeatMap(canvas: HTMLCanvasElement, grid: Grid, look: HeatMapStyle, place: Box): void {
  const ratio = devicePixelRatio;
  const [columns, rows] = [grid.rounds.length, grid.nodes.length];
  canvas.width = Math.round((place.left + place.width) * ratio);
  canvas.height = Math.round((place.top + place.height) * ratio);
  const context = canvas.getContext("2d");
  if (context === null || columns === 0 || rows === 0) return;
  context.imageSmoothingEnabled = false;
  const picture = new OffscreenCanvas(columns, rows);
  const pen = picture.getContext("2d");
  if (pen === null) return;
  pen.putImageData(new ImageData(pixels(grid, look), columns, rows), 0, 0);
  context.scale(ratio, ratio);
  context.drawImage(picture, place.left, place.top, place.width, place.height);
  drawCrosses(context, grid, look, place);
}

/** Return the pixels of the cells; cells without a report are transparent. */
export function pixels(grid: Grid, look: Pick<HeatMapStyle, "scale" | "bad">): Uint8ClampedArray<ArrayBuffer> {
  const { values, kinds, low, high } = grid;
  const words = new Uint32Array(values.length);
  const bad = toPixel(parseColor(look.bad));
  for (let index = 0; index < words.length; index++) {
    const kind = kinds[index];
    if (kind === BAD) words[index] = bad;
    else if (kind) words[index] = look.scale[scaleStep(values[index] as number, low, high)] as number;
  }
  return new Uint8ClampedArray(words.buffer);
}

function drawCrosses(context: CanvasRenderingContext2D, grid: Grid, look: HeatMapStyle, place: Box): void {
  const [width, height] = [place.width / grid.rounds.length, place.height / grid.nodes.length];
  if (Math.min(width, height) < CROSS_MIN) return;
  context.strokeStyle = look.ink;
  context.lineWidth = 1.25;
  context.beginPath();
  grid.kinds.forEach((kind, index) => {
    if (kind !== BAD) return;
    const x = place.left + ((index % grid.rounds.length) + 0.5) * width;
    const y = place.top + (Math.floor(index / grid.rounds.length) + 0.5) * height;
    context.moveTo(x - 2.5, y - 2.5);
    context.lineTo(x + 2.5, y + 2.5);
    context.moveTo(x + 2.5, y - 2.5);
    context.lineTo(x - 2.5, y + 2.5);
  });
  context.stroke();
}
