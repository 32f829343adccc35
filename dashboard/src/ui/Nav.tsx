import { Link } from "../router";

/** The pages that lead to all others: where, what it says, and the addresses that belong to it. */
export const PLACES = [
  { href: "/", text: "Jobs", own: /^\/(jobs(\/.*)?)?$/ },
  { href: "/nodes", text: "Nodes", own: /^\/(nodes(\/.*)?|join)$/ },
  { href: "/logs", text: "Logs", own: /^\/logs$/ },
  { href: "/alerts", text: "Alerts", own: /^\/alerts$/ },
  { href: "/compare", text: "Compare", own: /^\/compare$/ },
] as const;

export function Nav({ path }: { path: string }) {
  return (
    <nav className="places" aria-label="Pages">
      {PLACES.map(({ href, text, own }) => (
        <Link key={href} href={href} aria-current={own.test(path) ? "page" : undefined}>
          {text}
        </Link>
      ))}
    </nav>
  );
}
