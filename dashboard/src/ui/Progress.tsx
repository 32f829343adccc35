interface Props {
  /** 0 to 1. */
  value: number;
  label: string;
  /** State that determines the color. */
  tone?: string;
}

export function Progress({ value, label, tone = "" }: Props) {
  const share = Math.min(1, Math.max(0, Number.isFinite(value) ? value : 0));
  const whole = Math.round(share * 100);
  return (
    <div
      className={`progress ${tone}`}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={whole}
    >
      <div className="progress-fill" style={{ transform: `scaleX(${share})` }} />
    </div>
  );
}
