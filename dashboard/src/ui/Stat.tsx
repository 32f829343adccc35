import type { ReactNode } from "react";
import { Term } from "./Term";
import type { TermName } from "./terms";

interface Props {
  name: string;
  /** The term of the glossary that explains the name. */
  term?: TermName;
  /** Shown below the value. */
  more?: ReactNode;
  wide?: boolean;
  children: ReactNode;
}

/** One figure with its name, inside a `dl`. */
export function Stat({ name, term, more, wide, children }: Props) {
  return (
    <div className={wide ? "stat wide" : "stat"}>
      <dt>{term === undefined ? name : <Term of={term}>{name}</Term>}</dt>
      <dd>{children}</dd>
      {more !== undefined && <dd className="sub">{more}</dd>}
    </div>
  );
}
