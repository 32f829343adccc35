import type { LogLine } from "../api/types";
import { visible } from "../format/text";
import { jobPath, Link } from "../router";
import { LevelMark } from "./LevelMark";
import { Moment } from "../ui/Moment";
import { utc } from "../format/time";

/** A line of the log, whole. */
export function LineDetail({ line, onClose }: { line: LogLine; onClose: () => void }) {
  const about = [
    ...(line.round === null ? [] : [["round", line.round] as const]),
    ...Object.entries(line.fields as Record<string, unknown>),
  ];
  return (
    <section className="log-detail panel" aria-label="The chosen line" data-testid="log-detail">
      <header>
        <LevelMark level={line.level} />
        <b>
          <bdi>{visible(line.node || "the coordinator")}</bdi>
        </b>
        {line.job !== "" && <Link href={jobPath(line.job)}>{line.job}</Link>}
        <Moment at={line.at}>{utc(Date.parse(line.at))}</Moment>
        <button type="button" className="quiet-button" onClick={onClose}>
          Close
        </button>
      </header>
      <pre tabIndex={0} aria-label="Text">
        {visible(line.text)}
      </pre>
      {about.length > 0 && (
        <dl>
          {about.map(([name, value]) => (
            <div key={name}>
              <dt>
                <bdi>{visible(name)}</bdi>
              </dt>
              <dd>
                <bdi>{visible(typeof value === "string" ? value : JSON.stringify(value))}</bdi>
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}
