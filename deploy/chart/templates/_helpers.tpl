{{/* Labels of all objects of the chart. */}}
{{- define "hawser-proxy.labels" -}}
k8s-app: hawser-proxy
app.kubernetes.io/name: hawser-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The image of both containers. */}}
{{- define "hawser-proxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}
