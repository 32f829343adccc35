/** The room of rows that are not there because nobody would see them. */
export function Room({ height }: { height: number }) {
  if (height <= 0) return null;
  return (
    <tr aria-hidden="true" data-room style={{ height, border: 0 }}>
      <td style={{ padding: 0, border: 0 }} />
    </tr>
  );
}
