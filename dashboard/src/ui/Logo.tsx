/** The logo: six fish. */
const FISH = "M11 4C8.8 1.3 5.2 1.1 3.1 3.2L.6 1.3 1.3 4 .6 6.7 3.1 4.8C5.2 6.9 8.8 6.7 11 4Z";

const SCHOOL: [x: number, y: number, opacity: number][] = [
  [19.5, 12, 1],
  [10.5, 5.5, 0.85],
  [10, 18.5, 0.85],
  [1.5, 1, 0.5],
  [1, 12, 0.6],
  [1.5, 23, 0.5],
];

export function Logo() {
  return (
    <svg className="logo" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      {SCHOOL.map(([x, y, opacity]) => (
        <path key={`${x},${y}`} d={FISH} transform={`translate(${x} ${y})`} opacity={opacity} />
      ))}
    </svg>
  );
}
