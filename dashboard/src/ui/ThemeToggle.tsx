import { Icon } from "./Icon";
import { nextPreference, setTheme, systemTheme, useTheme } from "./theme";

const ICON = { system: "system", light: "sun", dark: "moon" } as const;
const WORD = { system: "system", light: "light", dark: "dark" } as const;

export function ThemeToggle() {
  const theme = useTheme();
  const next = nextPreference(theme, systemTheme());
  return (
    <button
      type="button"
      className="quiet-button icon-only"
      data-testid="theme-toggle"
      data-preference={theme.preference}
      aria-label={`Theme: ${WORD[theme.preference]}. Change to ${WORD[next]}`}
      title={`Theme: ${WORD[theme.preference]}`}
      onClick={() => setTheme(next)}
    >
      <Icon name={ICON[theme.preference]} />
    </button>
  );
}
