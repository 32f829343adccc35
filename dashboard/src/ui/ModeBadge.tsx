import type { Mode } from "../api/types";
import { capitalize } from "../format/text";
import { Icon } from "./Icon";

/** A job's mode as icon and word. */
export function ModeBadge({ mode, testId }: { mode: Mode; testId?: string }) {
  return (
    <span className="mode" data-testid={testId} data-mode={mode}>
      <Icon name="mode" />
      {capitalize(mode)}
    </span>
  );
}
