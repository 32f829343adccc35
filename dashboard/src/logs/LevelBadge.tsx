import type { LogLine } from "../api/types";
import { Icon, type IconName } from "../ui/Icon";

const ICONS: Record<LogLine["level"], IconName> = {
  debug: "idle",
  info: "info",
  warning: "warning",
  error: "refusal",
  critical: "refusal",
};

/** How bad a line is: icon and word, coloured besides. */
export function LevelMark({ level }: { level: LogLine["level"] }) {
  return (
    <span className="level" data-level={level}>
      <Icon name={ICONS[level]} />
      <span>{level}</span>
    </span>
  );
}
