import { useRef, type ReactNode } from "react";
import { useListItem } from "../router/router";
import { Icon } from "../ui/Icon";
import { saveFile } from "./csv";
import type { ChartZoom } from "./useZoom";

interface Props {
  title: string;
  /** Text alternative of the chart; null if its parts have their own. */
  label: string | null;
  testId: string;
  legend: ReactNode;
  plot: ReactNode;
  table: () => ReactNode;
  /** Shown instead of the chart if it has no data. */
  empty: string | null;
  height: number;
  /** Return the complete data, for a file. */
  csv: () => string;
  /** The chart's own zoom; a button resets it. */
  zoom?: Pick<ChartZoom, "range" | "reset">;
}

const IMAGE_FORMATS = ["png", "svg"] as const;

/** Frame of a chart: title, legend, buttons to save it, and the same data as a table. */
export function ChartFrame({ title, label, testId, legend, plot, table, empty, height, csv, zoom }: Props) {
  const [isTable, setIsTable] = useListItem("tables", testId);
  const figure = useRef<HTMLElement>(null);
  const saveImage = async (format: "svg" | "png") => {
    if (figure.current === null) return;
    const { figureToSvg, svgToPng } = await import("./exportImage");
    const svg = await figureToSvg(figure.current, title);
    saveFile(title, format === "svg" ? svg : await svgToPng(svg), format);
  };
  return (
    <figure ref={figure} className="chart" data-testid={testId}>
      <figcaption className="chart-head">
        <h3>{title}</h3>
        {empty === null && (
          <div className="chart-buttons">
            {zoom !== undefined && zoom.range !== null && (
              <button
                type="button"
                className="quiet-button icon-only"
                aria-label={`${title}: reset zoom`}
                title="Reset zoom"
                data-testid="reset-zoom"
                onClick={zoom.reset}
              >
                <Icon name="zoom" />
              </button>
            )}
            <button
              type="button"
              className="quiet-button icon-only"
              aria-label={`${title}: save as CSV`}
              title="Save as CSV"
              onClick={() => saveFile(title, csv())}
            >
              <Icon name="save" />
            </button>
            {!isTable &&
              IMAGE_FORMATS.map((format) => (
                <button
                  key={format}
                  type="button"
                  className="quiet-button save-picture"
                  aria-label={`${title}: save as ${format.toUpperCase()}`}
                  title={`Save as ${format.toUpperCase()}`}
                  onClick={() => void saveImage(format)}
                >
                  {format.toUpperCase()}
                </button>
              ))}
            <button
              type="button"
              className="quiet-button icon-only"
              aria-pressed={isTable}
              aria-label={`${title}: show as table`}
              title={isTable ? "Show as chart" : "Show as table"}
              onClick={() => setIsTable(!isTable)}
            >
              <Icon name={isTable ? "chart" : "table"} />
            </button>
          </div>
        )}
        <div className="readout">{legend}</div>
      </figcaption>
      {empty !== null ? (
        <div className="chart-empty" style={{ height }}>
          {empty}
        </div>
      ) : isTable ? (
        <div className="chart-table" style={{ height }} tabIndex={0} role="region" aria-label={`${title}, as a table`}>
          {table()}
        </div>
      ) : (
        <div {...(label === null ? {} : { role: "img", "aria-label": label })}>{plot}</div>
      )}
    </figure>
  );
}
