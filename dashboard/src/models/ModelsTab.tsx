import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { Job, ModelRow } from "../api/types";
import { pickMetric } from "../domain/metrics";
import { formatBytes, formatCount, formatNumber, formatPercent } from "../format/number";
import { escapeHidden } from "../format/text";
import { formatTime } from "../format/time";
import { sessionQuery } from "../queries/session";
import { useChoiceParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { hiddenHeading, Table, type Column } from "../ui/Table";
import { Timestamp } from "../ui/Timestamp";
import { PromoteDialog, RemoveLabelDialog } from "./PromoteDialog";
import { modelHref, modelsQuery } from "./queries";
import "../styles/models.css";

const FILTERS = ["kept", "all"] as const;
const FILTER_LABELS = { kept: "Kept", all: "All versions" };

/** The open dialog. */
type Dialog = { version: number } | { label: string } | null;

/** Tab of a job's model versions: metrics, labels, and downloads. */
export function ModelsTab({ job }: { job: Job }) {
  const [filter, setFilter] = useChoiceParam("models", FILTERS);
  const query = useInfiniteQuery(modelsQuery(job, filter === "kept"));
  const { data, hasNextPage, fetchNextPage, isFetchingNextPage } = query;
  const { data: role } = useQuery(sessionQuery);
  const [dialog, setDialog] = useState<Dialog>(null);
  const columns = useMemo(() => buildColumns(job.name, role === "operator", setDialog), [job.name, role]);
  return (
    <section className="models" aria-label="Models" data-testid="models">
      <header className="section-head">
        <h2>Models</h2>
        <div className="chips" role="radiogroup" aria-label="Filter">
          {FILTERS.map((option) => (
            <label key={option}>
              <input
                type="radio"
                name="models"
                className="visually-hidden"
                checked={filter === option}
                onChange={() => setFilter(option)}
              />
              <span>{FILTER_LABELS[option]}</span>
            </label>
          ))}
        </div>
      </header>
      <div className="panel">
        <Table
          layout="cards"
          className="models-table"
          columns={columns}
          rows={data?.pages.flatMap((page) => page.models) ?? []}
          rowKey={({ version }) => version}
          rowAttributes={rowAttributes}
          query={query}
          empty="No model yet. The first node that joins creates version 0."
          scroll={{}}
          testId="models-table"
        />
        {hasNextPage && (
          <button type="button" className="quiet-button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            Show older
          </button>
        )}
      </div>
      {dialog && "version" in dialog && <PromoteDialog job={job} version={dialog.version} onClose={() => setDialog(null)} />}
      {dialog && "label" in dialog && <RemoveLabelDialog job={job} label={dialog.label} onClose={() => setDialog(null)} />}
    </section>
  );
}

const rowAttributes = ({ version, kept }: ModelRow) => ({
  "data-testid": `model-${version}`,
  className: kept ? undefined : "gone",
});

function buildColumns(job: string, isOperator: boolean, open: (dialog: Dialog) => void): Column<ModelRow>[] {
  return [
    {
      title: "Version",
      term: "model version",
      cell: ({ version }) => (
        <>
          <span className="narrow-only">Version </span>
          {formatCount(version)}
        </>
      ),
    },
    {
      title: "Labels",
      className: "model-labels",
      unlabeled: true,
      cell: ({ labels, checkpoint }) => (
        <>
          <Labels labels={labels} onRemove={isOperator ? (label) => open({ label }) : undefined} />
          {checkpoint && <span className="faint">checkpoint</span>}
        </>
      ),
    },
    { title: "Accuracy", numeric: true, cell: ({ metrics }) => formatPercent(pickMetric("accuracy", metrics)) },
    { title: "Loss", numeric: true, cell: ({ metrics }) => formatNumber(pickMetric("loss", metrics)) },
    { title: "Size", numeric: true, cell: ({ bytes }) => formatBytes(bytes) },
    { title: "SHA-256", cell: ({ digest }) => <code title={digest}>{digest.slice(0, 12)}</code> },
    { title: "Closed", numeric: true, cell: ({ closed_at }) => <Timestamp at={closed_at} /> },
    {
      title: "Actions",
      heading: hiddenHeading("Actions"),
      className: "model-acts",
      unlabeled: true,
      cell: ({ version, kept }) => (
        <>
          {kept ? (
            <a
              className="quiet-button"
              href={modelHref(job, version)}
              download={`${job}-${version}.safetensors`}
              aria-label={`Download version ${version}`}
            >
              <Icon name="save" /> Download
            </a>
          ) : (
            <span className="faint">deleted</span>
          )}
          {kept && isOperator && (
            <button
              type="button"
              className="quiet-button"
              data-testid="promote"
              aria-label={`Promote version ${version}`}
              onClick={() => open({ version })}
            >
              <Icon name="star" /> Promote
            </button>
          )}
        </>
      ),
    },
  ];
}

interface LabelsProps {
  labels: ModelRow["labels"];
  onRemove: ((label: string) => void) | undefined;
}

function Labels({ labels, onRemove }: LabelsProps) {
  return labels.map(({ label, at, why }) => (
    <span
      key={label}
      className="model-label"
      title={`since ${formatTime(Date.parse(at), Date.now())}${why && `: ${escapeHidden(why)}`}`}
    >
      <Icon name="star" /> {label}
      {onRemove && (
        <button type="button" aria-label={`Remove label ${label}`} onClick={() => onRemove(label)}>
          <Icon name="cross" />
        </button>
      )}
    </span>
  ));
}
