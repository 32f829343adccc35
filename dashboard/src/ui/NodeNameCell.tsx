import type { ReactNode } from "react";
import { escapeHidden } from "../format/text";
import { Link, nodePath } from "../router/router";

/** A node's name, which links to its page, and a line of details below it. */
export function NodeNameCell({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <Link href={nodePath(name)}>
        <bdi title={escapeHidden(name)}>{escapeHidden(name)}</bdi>
      </Link>
      <span className="sub">{children}</span>
    </>
  );
}
