import { flatten } from "../format/flatten";
import { visible } from "../format/text";

/** Nested settings under each other, each beside its name: text, whatever they are. */
export function Pairs({ of, className }: { of: Record<string, unknown>; className: string }) {
  return (
    <dl className={`panel ${className}`}>
      {flatten(of).map(([name, value]) => (
        <div key={name}>
          <dt>
            <bdi>{visible(name)}</bdi>
          </dt>
          <dd>
            <bdi>{visible(value)}</bdi>
          </dd>
        </div>
      ))}
    </dl>
  );
}
