/** Draws what has no place on the axis: points that are NaN or infinite, as crosses along the edge of the plot. */
import type uPlot from "uplot";
import { exits, type Lines, type Point } from "./series";
import type { Tokens } from "./tokens";

const SIZE = 4;
const INSET = 11;

export function divergedMarks(
  lines: () => Lines,
  strokes: string[],
  tokens: Tokens,
  edge: "top" | "bottom",
): uPlot.Plugin {
  return {
    hooks: {
      draw: (plot) => {
        const { x, y, diverged } = lines();
        if (diverged.length === 0) return;
        const pen = new Pen(plot, tokens, edge);
        plot.ctx.save();
        plot.ctx.beginPath();
        const rim = SIZE * 1.5 * devicePixelRatio;
        plot.ctx.rect(plot.bbox.left - rim, plot.bbox.top, plot.bbox.width + 2 * rim, plot.bbox.height);
        plot.ctx.clip();
        y.forEach((line, index) => pen.exits(x, line, strokes[index] ?? tokens.ink2));
        for (const index of diverged) pen.cross(x[index] as number);
        pen.word(x[diverged[0] as number] as number);
        plot.ctx.restore();
      },
    },
  };
}

class Pen {
  private readonly ratio = devicePixelRatio;
  private readonly level: number;

  constructor(
    private readonly plot: uPlot,
    private readonly tokens: Tokens,
    private readonly edge: "top" | "bottom",
  ) {
    const { top, height } = plot.bbox;
    this.level = edge === "top" ? top + INSET * this.ratio : top + height - INSET * this.ratio;
  }

  /** Dashed lines from the last finite point to the first cross, and back. */
  exits(x: number[], line: Point[], colour: string): void {
    const { ctx } = this.plot;
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5 * this.ratio;
    ctx.setLineDash([3 * this.ratio, 3 * this.ratio]);
    for (const [from, to] of exits(line)) {
      ctx.beginPath();
      ctx.moveTo(this.across(x[from] as number), this.plot.valToPos(line[from] as number, "y", true));
      ctx.lineTo(this.across(x[to] as number), this.level);
      ctx.stroke();
    }
    ctx.setLineDash([]);
  }

  cross(at: number): void {
    const { ctx } = this.plot;
    const middle = this.across(at);
    const arm = SIZE * this.ratio;
    ctx.strokeStyle = this.tokens.bad;
    ctx.lineWidth = 1.75 * this.ratio;
    ctx.beginPath();
    ctx.moveTo(middle - arm, this.level - arm);
    ctx.lineTo(middle + arm, this.level + arm);
    ctx.moveTo(middle + arm, this.level - arm);
    ctx.lineTo(middle - arm, this.level + arm);
    ctx.stroke();
  }

  /** The word stands under the first cross (over it at the bottom edge), and ends there where it would not fit. */
  word(at: number): void {
    const { ctx, bbox } = this.plot;
    const middle = this.across(at);
    const arm = SIZE * this.ratio;
    const text = "diverged";
    ctx.font = this.tokens.font.replace("11px", `600 ${11 * this.ratio}px`);
    const fits = middle + ctx.measureText(text).width < bbox.left + bbox.width;
    ctx.textAlign = fits ? "left" : "right";
    ctx.textBaseline = "middle";
    const x = middle + (fits ? -arm : arm);
    const y = this.level + (SIZE + 10) * this.ratio * (this.edge === "top" ? 1 : -1);
    // A rim of the paper's colour keeps the word apart from lines that pass behind it.
    ctx.lineWidth = 4 * this.ratio;
    ctx.lineJoin = "round";
    ctx.strokeStyle = this.tokens.surface;
    ctx.strokeText(text, x, y);
    ctx.fillStyle = this.tokens.bad;
    ctx.fillText(text, x, y);
  }

  private across(value: number): number {
    return this.plot.valToPos(value, "x", true);
  }
}
