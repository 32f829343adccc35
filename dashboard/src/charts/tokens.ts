/** Colors of the theme for canvases, to which style sheets do not apply. */
import { useMemo } from "react";
import { useTheme } from "../ui/theme";

export interface Tokens {
  ink: string;
  ink2: string;
  ink3: string;
  line: string;
  surface: string;
  bad: string;
  warn: string;
  up: string;
  down: string;
  series: string[];
  /** From the minimum of a heat map to its maximum. */
  heat: string[];
  font: string;
}

export function readTokens(): Tokens {
  const root = getComputedStyle(document.documentElement);
  const read = (name: string) => root.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    ink2: read("--ink-2"),
    ink3: read("--ink-3"),
    line: read("--line"),
    surface: read("--surface"),
    bad: read("--bad"),
    warn: read("--warn"),
    up: read("--up"),
    down: read("--down"),
    series: [read("--series-1"), read("--series-2"), read("--series-3"), read("--series-4")],
    heat: [1, 2, 3, 4, 5].map((stop) => read(`--heat-${stop}`)),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
}

/** Return the tokens; the same object until the theme changes, so that charts are created again only then. */
export function useTokens(): Tokens {
  const { resolved } = useTheme();
  // The tokens are read from the document, which follows `resolved`.
  return useMemo(() => (void resolved, readTokens()), [resolved]);
}
