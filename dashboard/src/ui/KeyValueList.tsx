import { flatten } from "../format/flatten";
import { escapeHidden } from "../format/text";

/** Nested settings as a list of dotted names and values. */
export function KeyValueList({ values, className }: { values: Record<string, unknown>; className: string }) {
  return (
    <dl className={`panel ${className}`}>
      {flatten(values).map(([name, value]) => (
        <div key={name}>
          <dt>
            <bdi>{escapeHidden(name)}</bdi>
          </dt>
          <dd>
            <bdi>{escapeHidden(value)}</bdi>
          </dd>
        </div>
      ))}
    </dl>
  );
}
