import type { ReactNode } from "react";
import { visible } from "../format/text";
import { Link, nodePath } from "../router";

interface Props {
  name: string;
  /** What is said beneath it. */
  children: ReactNode;
}

/** The first cell of a node's row: its name, which leads to its page. */
export function NodeName({ name, children }: Props) {
  return (
    <th role="rowheader" scope="row" className="node-cell-name">
      <Link href={nodePath(name)}>
        <bdi title={visible(name)}>{visible(name)}</bdi>
      </Link>
      <span className="sub">{children}</span>
    </th>
  );
}
