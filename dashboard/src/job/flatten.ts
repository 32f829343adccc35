/** Nested settings as dotted names and written values, in their order. */
export function flatten(value: Record<string, unknown>, prefix = ""): [name: string, value: string][] {
  return Object.entries(value).flatMap(([key, inner]): [string, string][] => {
    const name = prefix === "" ? key : `${prefix}.${key}`;
    if (typeof inner === "object" && inner !== null && !Array.isArray(inner)) {
      return flatten(inner as Record<string, unknown>, name);
    }
    return inner === null || inner === undefined
      ? []
      : [[name, typeof inner === "string" ? inner : JSON.stringify(inner)]];
  });
}
