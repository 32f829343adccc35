import { useRef, type ReactNode } from "react";
import { useListed } from "../router";
import { Icon } from "../ui/Icon";
import { save } from "./csv";
import type { KeptZoom } from "./zoom";

interface Props {
  title: string;
  /** What the picture shows, for those who cannot see it; null where its parts say so themselves. */
  label: string | null;
  testId: string;
  readout: ReactNode;
  plot: ReactNode;
  table: () => ReactNode;
  empty: string | null;
  height: number;
  /** The whole data, for a file. */
  csv: () => string;
  /** The zoom that the chart has by itself; while it has one, a button undoes it. */
  zoom?: Pick<KeptZoom, "range" | "showAll">;
}

const PICTURES = ["png", "svg"] as const;

/** A chart with its title, its figures in words, and the same data as a table on demand. */
export function ChartFrame({ title, label, testId, readout, plot, table, empty, height, csv, zoom }: Props) {
  const [asTable, setAsTable] = useListed("tables", testId);
  const figure = useRef<HTMLElement>(null);
  const saveAs = async (kind: "svg" | "png") => {
    if (figure.current === null) return;
    const { pngOf, svgOf } = await import("./picture");
    const svg = await svgOf(figure.current, title);
    save(title, kind === "svg" ? svg : await pngOf(svg), kind);
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
                aria-label={`${title}: show all`}
                title="Show all"
                data-testid="show-all"
                onClick={zoom.showAll}
              >
                <Icon name="zoom" />
              </button>
            )}
            <button
              type="button"
              className="quiet-button icon-only"
              aria-label={`${title}: save as CSV`}
              title="Save as CSV"
              onClick={() => save(title, csv())}
            >
              <Icon name="save" />
            </button>
            {!asTable &&
              PICTURES.map((kind) => (
                <button
                  key={kind}
                  type="button"
                  className="quiet-button save-picture"
                  aria-label={`${title}: save as ${kind.toUpperCase()}`}
                  title={`Save as ${kind.toUpperCase()}`}
                  onClick={() => void saveAs(kind)}
                >
                  {kind.toUpperCase()}
                </button>
              ))}
            <button
              type="button"
              className="quiet-button icon-only"
              aria-pressed={asTable}
              aria-label={`${title}: show as table`}
              title={asTable ? "Show as chart" : "Show as table"}
              onClick={() => setAsTable(!asTable)}
            >
              <Icon name={asTable ? "chart" : "table"} />
            </button>
          </div>
        )}
        <div className="readout">{readout}</div>
      </figcaption>
      {empty !== null ? (
        <div className="chart-empty" style={{ height }}>
          {empty}
        </div>
      ) : asTable ? (
        <div className="chart-table" style={{ height }} tabIndex={0} role="region" aria-label={`${title}, as a table`}>
          {table()}
        </div>
      ) : (
        <div {...(label === null ? {} : { role: "img", "aria-label": label })}>{plot}</div>
      )}
    </figure>
  );
}
