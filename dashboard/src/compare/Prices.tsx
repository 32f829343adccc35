import { useQueries } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { trafficQuery } from "../api/queries";
import { bytes, count, figure, percent, UNKNOWN } from "../format/number";
import { visible } from "../format/text";
import { duration } from "../format/time";
import { jobPath, Link, useChoice, useText } from "../router";
import { Icon } from "../ui/Icon";
import { nodePrices } from "./nodes";
import { Swatch } from "./RunsChart";
import { SORTS, sorted, type Comparison, type Row, type Sort } from "./runs";

const writer = ({ judged }: Comparison) =>
  judged === "loss" ? figure : (value: number | undefined) => percent(value);

interface PricesProps {
  comparison: Comparison;
  /** The run that stands out in the charts; empty: none. */
  alone: string;
  onAlone: (name: string) => void;
}

/** What a byte bought, as `shoal compare` prints it. */
export function Prices({ comparison, alone, onAlone }: PricesProps) {
  const [sort, setSort] = useChoice<Sort>("sort", SORTS);
  const { judged, metrics, target, baseline, rows } = comparison;
  if (judged === undefined) return <p className="sub">The runs have nothing in common yet by which to judge them.</p>;
  const write = writer(comparison);
  const goal = write(target);
  const columns: [text: string, by: Sort | null][] = [
    ["Final", "last"],
    ["Best", "best"],
    ["Synchronisations", null],
    ["Up", null],
    ["Down", null],
    [`Bytes to ${goal}`, "reached"],
    [`Time to ${goal}`, null],
    ["Of baseline", "bytes"],
  ];
  return (
    <>
      <div className="toolbar">
        <h2>Prices</h2>
        <Target target={target} />
      </div>
      <div className="panel prices" tabIndex={0} role="region" aria-label="Prices, as a table">
        <table className="data-table" data-testid="compare-table">
          <caption className="sub">
            {metrics[judged]}; the bytes of {baseline} are the baseline
          </caption>
          <thead>
            <tr>
              <th scope="col">Run</th>
              {columns.map(([text, by]) => (
                <th key={text} scope="col" className="num" aria-sort={by !== null && by === sort ? "descending" : undefined}>
                  {by === null ? (
                    text
                  ) : (
                    <button type="button" className="sort-button" onClick={() => setSort(by === sort ? "given" : by)}>
                      {text}
                      {by === sort && <Icon name="sort" />}
                    </button>
                  )}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted(rows, sort, judged).map(([row, place]) => (
              <PriceRow
                key={row.run.job.name}
                row={row}
                place={place}
                write={write}
                isAlone={row.run.job.name === alone}
                onAlone={onAlone}
              />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** The value whose price is asked; it is in the address once it is a number. */
function Target({ target }: { target: number | undefined }) {
  const [given, setGiven] = useText("target");
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  const commit = () => {
    if (text === "" || Number.isFinite(Number(text))) setGiven(text.trim());
    else setText(given);
  };
  return (
    <form
      className="target"
      onSubmit={(event) => {
        event.preventDefault();
        commit();
      }}
    >
      <label>
        Target{" "}
        <input
          type="text"
          inputMode="decimal"
          data-testid="target"
          placeholder={target === undefined ? "" : String(Number(target.toPrecision(3)))}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onBlur={commit}
        />
      </label>
    </form>
  );
}

interface PriceRowProps {
  row: Row;
  place: number;
  write: (value: number | undefined) => string;
  isAlone: boolean;
  onAlone: (name: string) => void;
}

function PriceRow({ row, place, write, isAlone, onAlone }: PriceRowProps) {
  const { job } = row.run;
  return (
    <tr className={isAlone ? "alone" : undefined}>
      <th scope="row">
        <button
          type="button"
          className="swatch-button"
          aria-pressed={isAlone}
          aria-label={`Show ${job.name} alone`}
          onClick={() => onAlone(isAlone ? "" : job.name)}
        >
          <Swatch run={place} />
        </button>
        <Link href={jobPath(job.name)}>{job.name}</Link>{" "}
        <span className="sub">
          {visible(job.algorithm)} · {visible(job.schedule)}
        </span>
      </th>
      <td className="num">{write(row.last)}</td>
      <td className="num">{write(row.best)}</td>
      <td className="num">{count(row.syncs)}</td>
      <td className="num">{bytes(job.up_bytes)}</td>
      <td className="num">{bytes(job.down_bytes)}</td>
      <td className="num">{row.reached ? bytes(row.reached.total_bytes) : UNKNOWN}</td>
      <td className="num">{duration(row.reached?.elapsed_s)}</td>
      <td className="num">{percent(row.ratio)}</td>
    </tr>
  );
}

/** Of more runs the nodes of the one that stands out are shown. */
const RUNS_MAX = 8;

/** What each node sent and got until its run reached the target. */
export function NodePrices({ comparison, alone }: { comparison: Comparison; alone: string }) {
  const placed = comparison.rows.map((row, place): [Row, number] => [row, place]);
  const lit = placed.filter(([row]) => row.run.job.name === alone);
  const shown = lit.length > 0 ? lit : placed.length <= RUNS_MAX ? placed : [];
  const traffic = useQueries({ queries: shown.map(([row]) => trafficQuery(row.run.job)) });
  if (comparison.judged === undefined) return null;
  const goal = writer(comparison)(comparison.target);
  const columns = ["Up", "Down", `Up to ${goal}`, `Down to ${goal}`, `Bytes to ${goal}`];
  if (shown.length === 0) return <p className="sub">To see bytes by node, choose one run by its colour.</p>;
  return (
    <div className="panel prices" tabIndex={0} role="region" aria-label="Prices by node, as a table">
      <table className="data-table" data-testid="compare-nodes">
        <caption className="sub">By node: heads, polls and models</caption>
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">Node</th>
            {columns.map((column) => (
              <th key={column} scope="col" className="num">
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.flatMap(([{ run, reached }, place], index) =>
            nodePrices(traffic[index]?.data ?? [], reached?.version).map(({ node, up, down, price }) => (
              <tr key={`${run.job.name} ${node}`}>
                <th scope="row">
                  <Swatch run={place} />
                  {run.job.name}
                </th>
                <td>{node === "" ? "(no node)" : node}</td>
                <td className="num">{bytes(up)}</td>
                <td className="num">{bytes(down)}</td>
                <td className="num">{price ? bytes(price.up) : UNKNOWN}</td>
                <td className="num">{price ? bytes(price.down) : UNKNOWN}</td>
                <td className="num">{price ? bytes(price.up + price.down) : UNKNOWN}</td>
              </tr>
            )),
          )}
        </tbody>
      </table>
    </div>
  );
}
