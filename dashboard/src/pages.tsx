/** Every page and its address. Whatever is not the first thing people see is loaded when it is first looked at. */
import { lazy, type ReactNode } from "react";
import { JobsPage } from "./jobs/JobsPage";

const ComparePage = lazy(async () => ({ default: (await import("./compare/ComparePage")).ComparePage }));
const JobPage = lazy(async () => ({ default: (await import("./job/JobPage")).JobPage }));

export const PAGES = {
  "/": () => <JobsPage />,
  "/jobs": () => <JobsPage />,
  "/jobs/:name": (name = "") => <JobPage key={name} name={name} />,
  "/compare": () => <ComparePage />,
} as const satisfies Record<string, (...names: string[]) => ReactNode>;

export const PATTERNS = Object.keys(PAGES) as (keyof typeof PAGES)[];
