import { Link } from "../router/router";

/** Main pages: address, label, and the paths that belong to them. */
export const NAV_ITEMS = [
  { href: "/", text: "Jobs", own: /^\/((jobs|split)(\/.*)?)?$/ },
  { href: "/nodes", text: "Nodes", own: /^\/(nodes(\/.*)?|join)$/ },
  { href: "/logs", text: "Logs", own: /^\/logs$/ },
  { href: "/alerts", text: "Alerts", own: /^\/alerts$/ },
  { href: "/compare", text: "Compare", own: /^\/compare$/ },
] as const;

export function Nav({ path }: { path: string }) {
  return (
    <nav className="places" aria-label="Pages">
      {NAV_ITEMS.map(({ href, text, own }) => (
        <Link key={href} href={href} aria-current={own.test(path) ? "page" : undefined}>
          {text}
        </Link>
      ))}
    </nav>
  );
}
