import { useMemo } from "react";
import { UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { jobPath, Link } from "../router/router";
import { Table, type Column } from "../ui/Table";
import type { Run } from "./comparison";
import { configDifferences } from "./configDifferences";
import { Swatch } from "./Swatch";

/** Longer values are wrapped. */
const LONG = 28;

interface Row {
  name: string;
  place: number;
  values: ReadonlyMap<string, string>;
}

/** Table of the settings that differ between runs. */
export function ConfigDiff({ runs }: { runs: Run[] }) {
  const { names, values } = useMemo(() => configDifferences(runs), [runs]);
  if (runs.length < 2) return null;
  const rows = runs.map(({ job }, place): Row => ({ name: job.name, place, values: values[place] ?? new Map() }));
  const columns: Column<Row>[] = [
    {
      title: "Run",
      cell: ({ name, place }) => (
        <>
          <Swatch run={place} />
          <Link href={jobPath(name)}>{name}</Link>
        </>
      ),
    },
    ...names.map((name): Column<Row> => ({
      title: ` ${name}`,
      heading: <bdi>{escapeHidden(name)}</bdi>,
      cell: (row) => {
        const text = escapeHidden(row.values.get(name) ?? UNKNOWN);
        return <bdi data-long={text.length > LONG || undefined}>{text}</bdi>;
      },
    })),
  ];
  return (
    <section className="differing" aria-label="Configuration" data-testid="differing">
      <h2>Configuration</h2>
      {names.length === 0 ? (
        <p className="sub">All runs have the same configuration.</p>
      ) : (
        <div className="panel">
          <Table
            className="table-wide"
            columns={columns}
            rows={rows}
            rowKey={({ name }) => name}
            scroll={{ className: "cost-scroll", label: "Settings that differ" }}
          />
        </div>
      )}
    </section>
  );
}
