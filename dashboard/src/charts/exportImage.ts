/** Export of a chart with its title and legend as SVG or PNG. */
import { readTokens } from "./tokens";
import { findPlot } from "./plotRegistry";
import { escapeXml, recordSvg } from "./svgRecorder";

const MARGIN = 16;
const LINE = 20;
const SCALE = 2;

/** Return the SVG of a figure. Canvases become bitmaps, unless they belong to a plot. */
export async function figureToSvg(figure: HTMLElement, title: string): Promise<string> {
  const { ink, ink2, surface, font } = readTokens();
  const family = escapeXml(font.replace(/^\S+ /, ""));
  const width = Math.ceil(figure.getBoundingClientRect().width) + 2 * MARGIN;
  const words = renderLegend(figure, width, ink2);
  const top = MARGIN + LINE + words.lines * LINE;
  const parts = await renderFigure(figure);
  const height = Math.ceil(top + parts.height + MARGIN);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${family}">
<rect width="100%" height="100%" fill="${surface}"/>
<text x="${MARGIN}" y="${MARGIN + 12}" font-size="14" font-weight="600" fill="${ink}">${escapeXml(title)}</text>
${words.svg}
<g transform="translate(${MARGIN} ${top})">
${parts.svg}
</g>
</svg>
`;
}

/** Render the legend in as many lines as necessary. */
function renderLegend(figure: HTMLElement, width: number, ink: string): { svg: string; lines: number } {
  const pen = document.createElement("canvas").getContext("2d");
  let [x, line] = [MARGIN, 0];
  const textOf = (item: Element) => (item.textContent ?? "").replace(/\s+/g, " ").trim();
  const items = [...figure.querySelectorAll<HTMLElement>(".readout-item, .readout-place")];
  const svg = items.filter((item) => textOf(item) !== "").map((item) => {
    const text = textOf(item);
    const swatch = item.querySelector("i");
    if (pen !== null) pen.font = `12px ${getComputedStyle(item).fontFamily}`;
    const across = (swatch ? 16 : 0) + (pen?.measureText(text).width ?? text.length * 7) + 16;
    if (x + across > width && x > MARGIN) [x, line] = [MARGIN, line + 1];
    const y = MARGIN + LINE + 14 + line * LINE;
    const mark = swatch ? `<rect x="${x}" y="${y - 9}" width="10" height="10" rx="2" fill="${colorOf(swatch)}"/>` : "";
    const words = `<text x="${x + (swatch ? 16 : 0)}" y="${y}" font-size="12" fill="${ink}">${escapeXml(text)}</text>`;
    x += across;
    return mark + words;
  });
  return { svg: svg.join("\n"), lines: svg.length > 0 ? line + 1 : 0 };
}

function colorOf(swatch: Element): string {
  const { backgroundColor, borderTopColor } = getComputedStyle(swatch);
  return backgroundColor === "rgba(0, 0, 0, 0)" ? borderTopColor : backgroundColor;
}

async function renderFigure(figure: HTMLElement): Promise<{ svg: string; height: number }> {
  const plot = findPlot(figure);
  if (plot !== undefined) {
    const svg = await recordSvg(plot);
    return { svg: `<g transform="scale(${1 / devicePixelRatio})">${svg}</g>`, height: plot.height };
  }
  const box = figure.getBoundingClientRect();
  const pictures = [...figure.querySelectorAll<SVGSVGElement | HTMLCanvasElement>("canvas, svg:not(.icon)")];
  const top = Math.min(...pictures.map((one) => one.getBoundingClientRect().top));
  let height = 0;
  const svg = pictures.map((one) => {
    const at = one.getBoundingClientRect();
    height = Math.max(height, at.bottom - top);
    const place = `x="${at.left - box.left}" y="${at.top - top}" width="${at.width}" height="${at.height}"`;
    return one instanceof HTMLCanvasElement
      ? `<image ${place} href="${one.toDataURL()}"/>`
      : `<svg ${place} viewBox="${one.getAttribute("viewBox") ?? ""}">${inlineStyles(one)}</svg>`;
  });
  const words = [...figure.children].filter((child) => child.tagName !== "FIGCAPTION").flatMap((child) => renderTexts(child, box.left, top, top + height));
  return { svg: [...svg, ...words].join("\n"), height: Number.isFinite(height) ? height : 0 };
}

/** Render the texts around an image, such as the names of rows. */
function renderTexts(place: Element, left: number, top: number, bottom: number): string[] {
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  const found: string[] = [];
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (parent === null || parent.closest("svg, button, .visually-hidden") !== null) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const at = range.getBoundingClientRect();
    const text = (node.textContent ?? "").trim();
    if (text === "" || at.width === 0 || at.top < top || at.top > bottom) continue;
    const { color, fontSize } = getComputedStyle(parent);
    const where = `x="${at.left - left}" y="${at.top - top + at.height / 2}" dominant-baseline="central"`;
    found.push(`<text ${where} font-size="${parseFloat(fontSize)}" fill="${color}">${escapeXml(text)}</text>`);
  }
  return found;
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "stroke-opacity", "font-size", "font-weight", "visibility"];

/** Return the contents of a drawing with its computed styles as attributes. */
function inlineStyles(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const copies = copy.querySelectorAll<SVGElement>("*");
  drawing.querySelectorAll<SVGElement>("*").forEach((element, index) => {
    const own = getComputedStyle(element);
    for (const name of STYLES) copies[index]?.setAttribute(name, own.getPropertyValue(name));
    copies[index]?.removeAttribute("style");
  });
  return new XMLSerializer().serializeToString(copy).replace(/^<svg[^>]*>/, "").replace(/<\/svg>$/, "");
}

/** Render an SVG as PNG with twice the resolution of the page. */
export async function svgToPng(svg: string): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * SCALE;
  canvas.height = image.naturalHeight * SCALE;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob === null ? reject(new Error("the browser made no picture")) : resolve(blob))),
  );
}
