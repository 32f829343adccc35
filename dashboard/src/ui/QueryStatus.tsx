import { ErrorMessage } from "./ErrorMessage";

/** The part of a query's result that its panel shows. */
export interface QueryState {
  data: unknown;
  error: Error | null;
  refetch: () => unknown;
}

/** Placeholder for an answer: a skeleton while it is loading, the error and a button to retry if it has failed. */
export function QueryStatus({ query, lines = 3 }: { query: Pick<QueryState, "error" | "refetch">; lines?: number }) {
  if (query.error !== null) return <ErrorMessage error={query.error} onRetry={() => void query.refetch()} />;
  return <Loading lines={lines} />;
}

/** Skeleton of a text that is loading. */
export function Loading({ lines = 3 }: { lines?: number }) {
  return (
    <div className="skeleton" role="status" data-testid="loading">
      <span className="visually-hidden">Loading…</span>
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} style={{ width: `${[92, 74, 83][index % 3]}%` }} />
      ))}
    </div>
  );
}
