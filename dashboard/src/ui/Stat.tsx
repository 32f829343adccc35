import type { ReactNode } from "react";

interface Props {
  name: string;
  /** Shown below the value. */
  more?: ReactNode;
  wide?: boolean;
  children: ReactNode;
}

/** One figure with its name, inside a `dl`. */
export function Stat({ name, more, wide, children }: Props) {
  return (
    <div className={wide ? "stat wide" : "stat"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
      {more !== undefined && <dd className="sub">{more}</dd>}
    </div>
  );
}
