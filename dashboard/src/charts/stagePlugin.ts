/** Marks the first version of each further stage of a network that grows by a labeled line. */
import type uPlot from "uplot";
import type { Lines } from "./series";
import type { Tokens } from "./tokens";

const GAP = 4;

export function stagePlugin(lines: () => Lines, tokens: Tokens): uPlot.Plugin {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        const { x, stages = [] } = lines();
        ctx.save();
        ctx.font = tokens.font.replace("11px", `${11 * devicePixelRatio}px`);
        ctx.textBaseline = "top";
        ctx.strokeStyle = ctx.fillStyle = tokens.ink3;
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
        for (const [index, stage] of stages) {
          const at = plot.valToPos(x[index] as number, "x", true);
          if (at < bbox.left || at > bbox.left + bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(at, bbox.top);
          ctx.lineTo(at, bbox.top + bbox.height);
          ctx.stroke();
          const text = `stage ${stage}`;
          const fits = at + ctx.measureText(text).width + GAP * devicePixelRatio < bbox.left + bbox.width;
          ctx.textAlign = fits ? "left" : "right";
          ctx.fillText(text, at + (fits ? GAP : -GAP) * devicePixelRatio, bbox.top);
        }
        ctx.restore();
      },
    },
  };
}
