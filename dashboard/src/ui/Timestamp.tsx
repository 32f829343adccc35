import { formatTime, formatUtc } from "../format/time";

interface Props {
  /** ISO 8601, or ms. */
  at: string | number;
  /** The text; by default the local time. */
  children?: string;
}

/** A time in local time, with UTC as tooltip. */
export function Timestamp({ at, children }: Props) {
  const ms = typeof at === "number" ? at : Date.parse(at);
  return (
    <time dateTime={Number.isNaN(ms) ? undefined : new Date(ms).toISOString()} title={formatUtc(ms)}>
      {children ?? formatTime(ms, Date.now())}
    </time>
  );
}
