import { clock, utc } from "../format/time";

interface Props {
  /** As the coordinator writes it, or in ms. */
  at: string | number;
  /** Local time; other text only where the place needs it. */
  children?: string;
}

/** A moment in local time, with the day and in UTC where one points. */
export function Moment({ at, children }: Props) {
  const ms = typeof at === "number" ? at : Date.parse(at);
  return (
    <time dateTime={Number.isNaN(ms) ? undefined : new Date(ms).toISOString()} title={utc(ms)}>
      {children ?? clock(ms, Date.now())}
    </time>
  );
}
