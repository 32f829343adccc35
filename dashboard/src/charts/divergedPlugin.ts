/** Marks points that are NaN or infinite by crosses along the edge of the plot. */
import type uPlot from "uplot";
import { divergedSegments, type Lines, type Point } from "./series";
import type { Tokens } from "./tokens";

const SIZE = 4;
const INSET = 11;

export function divergedPlugin(
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
        const pen = new MarkPainter(plot, tokens, edge);
        plot.ctx.save();
        plot.ctx.beginPath();
        const rim = SIZE * 1.5 * devicePixelRatio;
        plot.ctx.rect(plot.bbox.left - rim, plot.bbox.top, plot.bbox.width + 2 * rim, plot.bbox.height);
        plot.ctx.clip();
        y.forEach((line, index) => pen.drawExits(x, line, strokes[index] ?? tokens.ink2));
        for (const index of diverged) pen.drawCross(x[index] as number);
        pen.drawLabel(x[diverged[0] as number] as number);
        plot.ctx.restore();
      },
    },
  };
}

class MarkPainter {
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

  /** Draw dashed lines between finite points and the neighboring crosses. */
  drawExits(x: number[], line: Point[], color: string): void {
    const { ctx } = this.plot;
    ctx.strokeStyle = color;
    ctx.lineWidth = 1.5 * this.ratio;
    ctx.setLineDash([3 * this.ratio, 3 * this.ratio]);
    for (const [from, to] of divergedSegments(line)) {
      ctx.beginPath();
      ctx.moveTo(this.toPixel(x[from] as number), this.plot.valToPos(line[from] as number, "y", true));
      ctx.lineTo(this.toPixel(x[to] as number), this.level);
      ctx.stroke();
    }
    ctx.setLineDash([]);
  }

  drawCross(at: number): void {
    const { ctx } = this.plot;
    const middle = this.toPixel(at);
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

  /** Label the first cross, to its left if there is no space to the right. */
  drawLabel(at: number): void {
    const { ctx, bbox } = this.plot;
    const middle = this.toPixel(at);
    const arm = SIZE * this.ratio;
    const text = "diverged";
    ctx.font = this.tokens.font.replace("11px", `600 ${11 * this.ratio}px`);
    const fits = middle + ctx.measureText(text).width < bbox.left + bbox.width;
    ctx.textAlign = fits ? "left" : "right";
    ctx.textBaseline = "middle";
    const x = middle + (fits ? -arm : arm);
    const y = this.level + (SIZE + 10) * this.ratio * (this.edge === "top" ? 1 : -1);
    // An outline in the background color separates the label from the lines behind it.
    ctx.lineWidth = 4 * this.ratio;
    ctx.lineJoin = "round";
    ctx.strokeStyle = this.tokens.surface;
    ctx.strokeText(text, x, y);
    ctx.fillStyle = this.tokens.bad;
    ctx.fillText(text, x, y);
  }

  private toPixel(value: number): number {
    return this.plot.valToPos(value, "x", true);
  }
}
