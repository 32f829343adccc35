/** Records what a plot draws on its canvas, as SVG: uPlot draws nowhere else, and its marks and bands come along. */
import type uPlot from "uplot";

type Step = [name: string, ...numbers: number[]];

/** A path whose steps can be read again. */
class ReadablePath extends Path2D {
  readonly steps: Step[];

  constructor(from?: Path2D | string) {
    super(from as Path2D);
    this.steps = from instanceof ReadablePath ? [...from.steps] : [];
  }

  override moveTo(x: number, y: number): void {
    super.moveTo(x, y);
    this.steps.push(["M", x, y]);
  }

  override lineTo(x: number, y: number): void {
    super.lineTo(x, y);
    this.steps.push([this.steps.length === 0 ? "M" : "L", x, y]);
  }

  override rect(x: number, y: number, width: number, height: number): void {
    super.rect(x, y, width, height);
    this.steps.push(["M", x, y], ["h", width], ["v", height], ["h", -width], ["Z"]);
  }

  override arc(x: number, y: number, r: number, from: number, to: number): void {
    super.arc(x, y, r, from, to);
    this.steps.push(["M", x + r, y], ["a", r, r, 0, 1, 1, -2 * r, 0], ["a", r, r, 0, 1, 1, 2 * r, 0]);
  }

  override closePath(): void {
    super.closePath();
    this.steps.push(["Z"]);
  }
}

const short = (value: number): string => String(Math.round(value * 100) / 100);
const dOf = (steps: Step[]): string => steps.map(([name, ...numbers]) => name + numbers.map(short).join(" ")).join("");
export const escaped = (text: string): string => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** Draws a plot once more, and returns the SVG of it in the canvas's pixels. */
export async function recorded(plot: uPlot): Promise<string> {
  const recorder = new Recorder(plot.ctx);
  const plain = window.Path2D;
  window.Path2D = ReadablePath;
  try {
    plot.setData(plot.data); // every path is made anew; a zoom stays
    await Promise.resolve(); // it draws at the end of the task
  } finally {
    window.Path2D = plain;
    recorder.stop();
  }
  return recorder.svg();
}

const ANCHORS: Record<string, string> = { center: "middle", right: "end", end: "end" };
const BASELINES: Record<string, string> = { middle: "central", top: "text-before-edge", bottom: "text-after-edge" };

class Recorder {
  private readonly out: string[] = [];
  private path = new ReadablePath();
  private clips: string[] = [];
  private readonly kept: number[] = [];
  private defined = 0;
  private readonly methods: string[] = [];

  constructor(private readonly ctx: CanvasRenderingContext2D) {
    this.on("beginPath", () => (this.path = new ReadablePath()));
    for (const name of ["moveTo", "lineTo", "rect", "arc", "closePath"] as const) {
      this.on(name, (...given: never[]) => (this.path[name] as (...given: never[]) => void)(...given));
    }
    this.on("save", () => this.kept.push(this.clips.length));
    this.on("restore", () => (this.clips = this.clips.slice(0, this.kept.pop() ?? 0)));
    this.on("clip", (path) => this.clip(path));
    this.on("stroke", (path) => this.draw(this.stepsOf(path), `fill="none" ${this.strokeStyle()}`));
    this.on("fill", (path) => this.draw(this.stepsOf(path), `fill="${this.ctx.fillStyle}"`));
    this.on("fillRect", (x: number, y: number, width: number, height: number) => {
      const rect = new ReadablePath();
      rect.rect(x, y, width, height);
      this.draw(rect.steps, `fill="${this.ctx.fillStyle}"`);
    });
    this.on("fillText", (text: string, x: number, y: number) => this.text(text, x, y, `fill="${this.ctx.fillStyle}"`));
    this.on("strokeText", (text: string, x: number, y: number) =>
      this.text(text, x, y, `fill="none" stroke-linejoin="round" ${this.strokeStyle()}`),
    );
  }

  /** Lets the context be as it was. */
  stop(): void {
    for (const name of this.methods) delete (this.ctx as unknown as Record<string, unknown>)[name];
  }

  svg = (): string => this.out.join("\n");

  // The method goes on to do what it does; an own property hides it until `stop`.
  private on(name: string, note: (...given: any[]) => unknown): void {
    const plain = (this.ctx as unknown as Record<string, (...given: unknown[]) => unknown>)[name]!;
    this.methods.push(name);
    Object.defineProperty(this.ctx, name, {
      configurable: true,
      value: (...given: unknown[]) => {
        note(...given);
        return plain.apply(this.ctx, given);
      },
    });
  }

  private stepsOf = (path: unknown): Step[] => (path instanceof ReadablePath ? path.steps : this.path.steps);

  private strokeStyle(): string {
    const { strokeStyle, lineWidth } = this.ctx;
    const dash = this.ctx.getLineDash();
    const dashes = dash.length > 0 ? ` stroke-dasharray="${dash.map(short).join(" ")}"` : "";
    return `stroke="${strokeStyle}" stroke-width="${short(lineWidth)}"${dashes}`;
  }

  private clip(path: unknown): void {
    const id = `clip-${this.defined++}`;
    this.out.push(`<clipPath id="${id}"><path d="${dOf(this.stepsOf(path))}"/></clipPath>`);
    this.clips = [...this.clips, id];
  }

  private draw(steps: Step[], style: string): void {
    if (steps.length > 0) this.put(`<path d="${dOf(steps)}" ${style} ${this.place()}/>`);
  }

  private text(text: string, x: number, y: number, style: string): void {
    if (text === "") return;
    const { font, textAlign, textBaseline } = this.ctx;
    const anchor = ANCHORS[textAlign] ?? "start";
    const baseline = BASELINES[textBaseline] ?? "auto";
    const look = `text-anchor="${anchor}" dominant-baseline="${baseline}" style="font: ${escaped(font)}"`;
    this.put(`<text x="${short(x)}" y="${short(y)}" ${look} ${style} ${this.place()}>${escaped(text)}</text>`);
  }

  private place(): string {
    const { a, b, c, d, e, f } = this.ctx.getTransform();
    const alpha = this.ctx.globalAlpha < 1 ? ` opacity="${this.ctx.globalAlpha}"` : "";
    return `transform="matrix(${[a, b, c, d, e, f].map(short).join(" ")})"${alpha}`;
  }

  private put(element: string): void {
    this.out.push(this.clips.reduceRight((inner, id) => `<g clip-path="url(#${id})">${inner}</g>`, element));
  }
}
