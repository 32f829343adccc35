/** Return nested settings as dotted names and formatted values. */
export function flatten(value: Record<string, unknown>, prefix = ""): [name: string, value: string][] {
  return Object.entries(value).flatMap(([key, inner]): [string, string][] => {
    const name = prefix === "" ? key : `${prefix}.${key}`;
    if (typeof inner === "object" && inner !== null && !Array.isArray(inner)) {
      return flatten(inner as Record<string, unknown>, name);
    }
    if (inner === null || inner === undefined) return [];
    const words = Array.isArray(inner) && inner.length > 0 && inner.every((one) => typeof one === "string");
    return [[name, typeof inner === "string" ? inner : words ? inner.join(", ") : JSON.stringify(inner)]];
  });
}
