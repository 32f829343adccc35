import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { memo, useState } from "react";
import { sessionQuery } from "../api/queries";
import type { Job, ModelRow } from "../api/types";
import { pick } from "../format/metric";
import { bytes, count, figure, percent } from "../format/number";
import { visible } from "../format/text";
import { clock } from "../format/time";
import type { ViewProps } from "../job/tabs";
import { useChoice } from "../router";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { PromoteDialog, WithdrawDialog } from "./PromoteDialog";
import { modelHref, modelsQuery } from "./queries";
import { Moment } from "../ui/Moment";
import { Loading } from "../ui/Unanswered";
import "../styles/models.css";

const SHOWN = ["kept", "all"] as const;
const WORDS = { kept: "Kept", all: "All versions" };

type Asked = { version: number } | { label: string } | null;

/** A job's models: what each is worth, where to get it, and what it is called. */
export function ModelsTab({ job }: ViewProps) {
  const [shown, setShown] = useChoice("models", SHOWN);
  const { data, error, refetch, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(
    modelsQuery(job, shown === "kept"),
  );
  const { data: role } = useQuery(sessionQuery);
  const [asked, setAsked] = useState<Asked>(null);
  const models = data?.pages.flatMap((page) => page.models);
  return (
    <section className="models" aria-label="Models" data-testid="models">
      <header className="section-head">
        <h2>Models</h2>
        <div className="chips" role="radiogroup" aria-label="Which models">
          {SHOWN.map((option) => (
            <label key={option}>
              <input
                type="radio"
                name="models"
                className="visually-hidden"
                checked={shown === option}
                onChange={() => setShown(option)}
              />
              <span>{WORDS[option]}</span>
            </label>
          ))}
        </div>
      </header>
      {error && <Problem error={error} again={() => void refetch()} />}
      {models === undefined && !error && <Loading />}
      {models !== undefined && (
        <div className="panel">
          {models.length === 0 ? (
            <p className="nothing">There is no model yet. A node makes version 0 when it joins.</p>
          ) : (
            <Table job={job} models={models} mayAct={role === "operator"} onAsk={setAsked} />
          )}
          {hasNextPage && (
            <button
              type="button"
              className="quiet-button"
              disabled={isFetchingNextPage}
              onClick={() => void fetchNextPage()}
            >
              Show older
            </button>
          )}
        </div>
      )}
      {asked && "version" in asked && <PromoteDialog job={job} version={asked.version} onClose={() => setAsked(null)} />}
      {asked && "label" in asked && <WithdrawDialog job={job} label={asked.label} onClose={() => setAsked(null)} />}
    </section>
  );
}

interface TableProps {
  job: Job;
  models: ModelRow[];
  mayAct: boolean;
  onAsk: (asked: Asked) => void;
}

function Table({ job, models, mayAct, onAsk }: TableProps) {
  return (
    <div className="table-scroll">
      <table className="nodes-table models-table" role="table" data-testid="models-table">
      <thead role="rowgroup">
        <tr role="row">
          {["Version", "Labels", "Accuracy", "Loss", "Size", "SHA-256", "Closed"].map((title) => (
            <th key={title} role="columnheader" scope="col" className={TEXT.has(title) ? undefined : "num"}>
              {title}
            </th>
          ))}
          <th role="columnheader" scope="col">
            <span className="visually-hidden">What can be done</span>
          </th>
        </tr>
      </thead>
      <tbody role="rowgroup">
        {models.map((model) => (
          <Row key={model.version} job={job.name} model={model} mayAct={mayAct} onAsk={onAsk} />
        ))}
      </tbody>
    </table>
    </div>
  );
}

const TEXT = new Set(["Version", "Labels", "SHA-256"]);

interface RowProps {
  job: string;
  model: ModelRow;
  mayAct: boolean;
  onAsk: (asked: Asked) => void;
}

const Row = memo(function Row({ job, model, mayAct, onAsk }: RowProps) {
  const { version, metrics, kept, digest } = model;
  return (
    <tr role="row" data-testid={`model-${version}`} className={kept ? undefined : "gone"}>
      <th role="rowheader" scope="row">
        <span className="narrow-only">Version </span>
        {count(version)}
      </th>
      <td role="cell" className="model-labels">
        {model.labels.map(({ label, at, why }) => (
          <span key={label} className="model-label" title={`since ${clock(Date.parse(at), Date.now())}${why && `: ${visible(why)}`}`}>
            <Icon name="star" /> {label}
            {mayAct && (
              <button type="button" aria-label={`Withdraw ${label}`} onClick={() => onAsk({ label })}>
                <Icon name="cross" />
              </button>
            )}
          </span>
        ))}
      </td>
      <td role="cell" className="num" data-label="Accuracy">
        {percent(pick("accuracy", metrics))}
      </td>
      <td role="cell" className="num" data-label="Loss">
        {figure(pick("loss", metrics))}
      </td>
      <td role="cell" className="num" data-label="Size">
        {bytes(model.bytes)}
      </td>
      <td role="cell" data-label="SHA-256">
        <code title={digest}>{digest.slice(0, 12)}</code>
      </td>
      <td role="cell" className="num" data-label="Closed">
        <Moment at={model.closed_at} />
      </td>
      <td role="cell" className="model-acts">
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
          <span className="faint">no longer kept</span>
        )}
        {kept && mayAct && (
          <button
            type="button"
            className="quiet-button"
            data-testid="promote"
            aria-label={`Promote version ${version}`}
            onClick={() => onAsk({ version })}
          >
            <Icon name="star" /> Promote
          </button>
        )}
      </td>
    </tr>
  );
});
