/** Keys of the cached answers that more than one folder reads or changes. */

export const queryKeys = {
  jobs: ["jobs"] as const,
  job: (job: string) => ["job", job] as const,
  peers: (job: string) => ["peers", job] as const,
  alerts: ["alerts"] as const,
  session: ["session"] as const,
  tokens: ["tokens"] as const,
};
