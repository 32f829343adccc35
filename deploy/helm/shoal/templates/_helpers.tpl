{{- define "shoal.labels" -}}
app.kubernetes.io/name: shoal
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "shoal.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "shoal.shut-in" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* A resource of ours is called so, and a word: 52 characters at most, for a StatefulSet adds eleven to its name. */ -}}
{{- define "shoal.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* A map of settings as variables: leaseS or lease_s becomes PREFIX__LEASE_S. Whatever is no text is written as JSON:
       that is how shoal reads lists and maps, and a number of a values file would else come as 8.6e+09. */ -}}
{{- define "shoal.variables" -}}
{{- $prefix := .prefix -}}
{{- range $name, $value := omit .settings "hosts" }}
- name: {{ $prefix }}__{{ $name | snakecase | upper }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}

{{- /* The names under which a coordinator is reached: the service's, the ingress's, and those of its setting `hosts`. */ -}}
{{- define "shoal.hosts" -}}
{{- $name := printf "%s-coordinator" (include "shoal.name" .) -}}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) -}}
{{- $hosts = append $hosts (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- if .Values.coordinator.ingress.enabled -}}
{{- $hosts = append $hosts .Values.coordinator.ingress.host -}}
{{- end -}}
{{- concat $hosts (.Values.coordinator.settings.hosts | default list) | toJson -}}
{{- end }}

{{- /* Where a coordinator finds its secrets. */ -}}
{{- define "shoal.secrets" -}}
{{- if .database.secret }}
- {name: SHOAL_COORDINATOR__DATABASE_URL_FILE, value: /run/secrets/database/url}
{{- end }}
{{- if .blobs.secret }}
- {name: SHOAL_COORDINATOR__BLOBS_KEY_ID_FILE, value: /run/secrets/blobs/id}
- {name: SHOAL_COORDINATOR__BLOBS_SECRET_FILE, value: /run/secrets/blobs/secret}
{{- end }}
{{- if .operatorToken.secret }}
- {name: SHOAL_COORDINATOR__OPERATOR_TOKEN_FILE, value: /run/secrets/operator/token}
{{- end }}
{{- end }}
