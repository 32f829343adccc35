/** Recorder of a plot's canvas drawing as SVG. */
import type uPlot from "uplot";

type Step = [name: string, ...numbers: number[]];

/** A path that keeps its steps. */
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

const roundTwo = (value: number): string => String(Math.round(value * 100) / 100);
const pathData = (steps: Step[]): string => steps.map(([name, ...numbers]) => name + numbers.map(roundTwo).join(" ")).join("");
export const escapeXml = (text: string): string => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** Redraw a plot and return its SVG in canvas pixels. */
export async function recordSvg(plot: uPlot): Promise<string> {
  const recorder = new SvgRecorder(plot.ctx);
  const plain = window.Path2D;
  window.Path2D = ReadablePath;
  try {
    plot.setData(plot.data); // rebuilds every path and keeps the zoom
    await Promise.resolve(); // uPlot draws at the end of the task
  } finally {
    window.Path2D = plain;
    recorder.stop();
  }
  return recorder.svg();
}

const ANCHORS: Record<string, string> = { center: "middle", right: "end", end: "end" };
const BASELINES: Record<string, string> = { middle: "central", top: "text-before-edge", bottom: "text-after-edge" };

class SvgRecorder {
  private readonly out: string[] = [];
  private path = new ReadablePath();
  private clips: string[] = [];
  private readonly saved: number[] = [];
  private defined = 0;
  private readonly methods: string[] = [];

  constructor(private readonly ctx: CanvasRenderingContext2D) {
    this.intercept("beginPath", () => (this.path = new ReadablePath()));
    for (const name of ["moveTo", "lineTo", "rect", "arc", "closePath"] as const) {
      this.intercept(name, (...given: never[]) => (this.path[name] as (...given: never[]) => void)(...given));
    }
    this.intercept("save", () => this.saved.push(this.clips.length));
    this.intercept("restore", () => (this.clips = this.clips.slice(0, this.saved.pop() ?? 0)));
    this.intercept("clip", (path) => this.clip(path));
    this.intercept("stroke", (path) => this.draw(this.stepsOf(path), `fill="none" ${this.strokeStyle()}`));
    this.intercept("fill", (path) => this.draw(this.stepsOf(path), `fill="${this.ctx.fillStyle}"`));
    this.intercept("fillRect", (x: number, y: number, width: number, height: number) => {
      const rect = new ReadablePath();
      rect.rect(x, y, width, height);
      this.draw(rect.steps, `fill="${this.ctx.fillStyle}"`);
    });
    this.intercept("fillText", (text: string, x: number, y: number) => this.text(text, x, y, `fill="${this.ctx.fillStyle}"`));
    this.intercept("strokeText", (text: string, x: number, y: number) =>
      this.text(text, x, y, `fill="none" stroke-linejoin="round" ${this.strokeStyle()}`),
    );
  }

  /** Restore the context's methods. */
  stop(): void {
    for (const name of this.methods) delete (this.ctx as unknown as Record<string, unknown>)[name];
  }

  svg = (): string => this.out.join("\n");

  // An own property shadows the method until `stop`.
  private intercept(name: string, note: (...given: any[]) => unknown): void {
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
    const dashes = dash.length > 0 ? ` stroke-dasharray="${dash.map(roundTwo).join(" ")}"` : "";
    return `stroke="${strokeStyle}" stroke-width="${roundTwo(lineWidth)}"${dashes}`;
  }

  private clip(path: unknown): void {
    const id = `clip-${this.defined++}`;
    this.out.push(`<clipPath id="${id}"><path d="${pathData(this.stepsOf(path))}"/></clipPath>`);
    this.clips = [...this.clips, id];
  }

  private draw(steps: Step[], style: string): void {
    if (steps.length > 0) this.append(`<path d="${pathData(steps)}" ${style} ${this.transform()}/>`);
  }

  private text(text: string, x: number, y: number, style: string): void {
    if (text === "") return;
    const { font, textAlign, textBaseline } = this.ctx;
    const anchor = ANCHORS[textAlign] ?? "start";
    const baseline = BASELINES[textBaseline] ?? "auto";
    const look = `text-anchor="${anchor}" dominant-baseline="${baseline}" style="font: ${escapeXml(font)}"`;
    this.append(`<text x="${roundTwo(x)}" y="${roundTwo(y)}" ${look} ${style} ${this.transform()}>${escapeXml(text)}</text>`);
  }

  private transform(): string {
    const { a, b, c, d, e, f } = this.ctx.getTransform();
    const alpha = this.ctx.globalAlpha < 1 ? ` opacity="${this.ctx.globalAlpha}"` : "";
    return `transform="matrix(${[a, b, c, d, e, f].map(roundTwo).join(" ")})"${alpha}`;
  }

  private append(element: string): void {
    this.out.push(this.clips.reduceRight((inner, id) => `<g clip-path="url(#${id})">${inner}</g>`, element));
  }
}
