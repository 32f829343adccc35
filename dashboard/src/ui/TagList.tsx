import { escapeHidden } from "../format/text";
import { Link, tagPath } from "../router/router";

/** A job's tags; each links to the jobs with that tag. */
export function TagList({ tags }: { tags: string[] }) {
  if (tags.length === 0) return null;
  return (
    <ul className="tags" aria-label="Tags">
      {tags.map((tag) => (
        <li key={tag}>
          <Link href={tagPath(tag)} className="tag">
            <bdi>{escapeHidden(tag)}</bdi>
          </Link>
        </li>
      ))}
    </ul>
  );
}
