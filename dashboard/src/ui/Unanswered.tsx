import { Problem } from "./Problem";

/** What a panel needs to know of the question whose answer it shows. */
export interface Question {
  data: unknown;
  error: Error | null;
  refetch: () => unknown;
}

/** In the place of an answer: grey lines while it is under way, what went wrong and *Again* where it has failed. */
export function Unanswered({ question, lines = 3 }: { question: Pick<Question, "error" | "refetch">; lines?: number }) {
  if (question.error !== null) return <Problem error={question.error} again={() => void question.refetch()} />;
  return <Loading lines={lines} />;
}

/** An answer is under way: what it will say nobody knows yet. */
export function Loading({ lines = 3 }: { lines?: number }) {
  return (
    <div className="skeleton" role="status" data-testid="loading">
      <span className="visually-hidden">Loading …</span>
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} style={{ width: `${[92, 74, 83][index % 3]}%` }} />
      ))}
    </div>
  );
}
