import type { LogLine } from "../api/types";
import { Icon, type IconName } from "../ui/Icon";

const ICONS: Record<LogLine["level"], IconName> = {
  debug: "idle",
  info: "info",
  warning: "warning",
  error: "refusal",
  critical: "refusal",
};

/** A log level as icon and word. */
export function LevelBadge({ level }: { level: LogLine["level"] }) {
  return (
    <span className="level" data-level={level}>
      <Icon name={ICONS[level]} />
      <span>{level}</span>
    </span>
  );
}
