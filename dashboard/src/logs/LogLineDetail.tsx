import type { LogLine } from "../api/types";
import { escapeHidden } from "../format/text";
import { jobPath, Link } from "../router/router";
import { LevelBadge } from "./LevelBadge";
import { Timestamp } from "../ui/Timestamp";
import { formatUtc } from "../format/time";

/** Details of a log line. */
export function LogLineDetail({ line, onClose }: { line: LogLine; onClose: () => void }) {
  const about = [
    ...(line.round === null ? [] : [["round", line.round] as const]),
    ...Object.entries(line.fields as Record<string, unknown>),
  ];
  return (
    <section className="log-detail panel" aria-label="Selected line" data-testid="log-detail">
      <header>
        <LevelBadge level={line.level} />
        <b>
          <bdi>{escapeHidden(line.node || "coordinator")}</bdi>
        </b>
        {line.job !== "" && <Link href={jobPath(line.job)}>{line.job}</Link>}
        <Timestamp at={line.at}>{formatUtc(Date.parse(line.at))}</Timestamp>
        <button type="button" className="quiet-button" onClick={onClose}>
          Close
        </button>
      </header>
      <pre tabIndex={0} aria-label="Text">
        {escapeHidden(line.text)}
      </pre>
      {about.length > 0 && (
        <dl>
          {about.map(([name, value]) => (
            <div key={name}>
              <dt>
                <bdi>{escapeHidden(name)}</bdi>
              </dt>
              <dd>
                <bdi>{escapeHidden(typeof value === "string" ? value : JSON.stringify(value))}</bdi>
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}
