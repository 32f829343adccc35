/** Icons on a 16 × 16 grid. They are decorative: a word or a label says the same. */
const STROKES = {
  waiting: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2ZM8 4.8V8l2.2 1.6",
  running: "M5 3.2v9.6L12.6 8Z",
  paused: "M5.2 3.5v9M10.8 3.5v9",
  evaluating: "M2.2 11.5a6 6 0 1 1 11.6 0M8 9.5l3-4",
  done: "M3 8.6l3.3 3.4L13 4.6",
  stopped: "M4 4h8v8H4Z",
  failed: "M8 1.8 14.6 13.4H1.4ZM8 6.4v3.2M8 11.6v.1",
  training: "M1.5 8h2.6l1.8-4.6L9.4 12.6 11.2 8h3.3",
  online: "M3 8.6l3.3 3.4L13 4.6",
  idle: "M8 3.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9Z",
  stale: "M8 2.5a5.5 5.5 0 0 1 5.5 5.5M12 12a5.5 5.5 0 0 1-8 0M2.5 8A5.5 5.5 0 0 1 4 4.2M8 5.5V8.6M8 10.8v.1",
  gone: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2ZM3.8 3.8l8.4 8.4",
  decision: "M4 14V2M4 4.5h4.5a3 3 0 0 1 3 3V9M9.3 7.4l2.2 2.2 2.2-2.2",
  mode: "M3.5 8a1.6 1.6 0 1 1 .01 0ZM11 4.2a1.6 1.6 0 1 1 .01 0ZM11 14.2a1.6 1.6 0 1 1 .01 0ZM5 5.8l4.6-2.3M5 7.4l4.8 4",
  node: "M3 3.5h10v7H3ZM6 13.5h4M8 10.5v3",
  server: "M3 2.5h10v4.6H3ZM3 8.9h10v4.6H3ZM5.4 4.8v.1M5.4 11.2v.1",
  handover: "M2.5 5.5h8.2M8 2.8l2.7 2.7L8 8.2M13.5 10.6H5.3M8 7.9l-2.7 2.7L8 13.3",
  apart: "M2.5 8h3.2M10.3 8h3.2M7 4.5l2 7",
  refusal: "M8 1.8 13.5 4v4c0 3-2.2 5.2-5.5 6.4C4.7 13.2 2.5 11 2.5 8V4ZM6 6l4 4M10 6l-4 4",
  state: "M4 14V2.5M4 3h8.5l-2 3 2 3H4",
  warning: "M8 1.8 14.6 13.4H1.4ZM8 6.4v3.2M8 11.6v.1",
  info: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2ZM8 7.4v3.6M8 4.9v.1",
  up: "M8 13V3.2M4 7l4-4 4 4",
  down: "M8 3v9.8M4 9l4 4 4-4",
  table: "M2.5 3h11v10h-11ZM2.5 6.5h11M2.5 9.8h11M6.5 6.5V13",
  chart: "M2.5 2.5v11h11M5 10l2.8-3.5 2.2 2L13.5 4",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6ZM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M4 4l.6.6M11.4 11.4l.6.6M12 4l-.6.6M4.6 11.4l-.6.6",
  moon: "M13.2 9.6A5.7 5.7 0 0 1 6.4 2.8a5.7 5.7 0 1 0 6.8 6.8Z",
  system: "M2 3h12v8H2ZM5.5 13.5h5M8 11v2.5",
  key: "M10.2 2.2a3.6 3.6 0 1 1-2.7 6L2.8 13H2v-2l.8-.8M10.9 5.1v.1",
  link: "M2 8a6 6 0 0 1 12 0M4.6 8.6a3.4 3.4 0 0 1 6.8 0M8 11v.1",
  sort: "M8 3v10M4.5 9.5 8 13l3.5-3.5",
  copy: "M5.5 5.5h8v8h-8ZM10.5 5.5v-3h-8v8h3",
  plus: "M8 3v10M3 8h10",
  cross: "M4 4l8 8M12 4l-8 8",
  tag: "M2.5 2.5h5.2l5.8 5.8-5.2 5.2-5.8-5.8ZM5.4 5.4v.1",
  star: "M8 2.2l1.8 3.7 4 .6-2.9 2.8.7 4L8 11.4l-3.6 1.9.7-4L2.2 6.5l4-.6Z",
  save: "M8 2.5v7.8M4.6 7 8 10.3 11.4 7M2.8 13.2h10.4",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9ZM10.3 10.3l3.2 3.2",
  zoom: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9ZM10.3 10.3l3.2 3.2M5 7h4",
} as const;

export type IconName = keyof typeof STROKES;

const FILLED: ReadonlySet<IconName> = new Set(["running", "stopped"]);

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <IconPath name={name} />
    </svg>
  );
}

/** The path of an icon, 16 × 16, for use inside another SVG. */
export function IconPath({ name }: { name: IconName }) {
  return <path d={STROKES[name]} className={FILLED.has(name) ? "filled" : undefined} />;
}
